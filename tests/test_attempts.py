"""Two attempts at the same work alive at once, in either order: the later one has the say, and each row is there once.

The older attempt is a thread that is held at one place while its lease runs out and another attempt goes to the end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_lake_provider.catalog.postgres import PostgresCatalog
from airflow_lake_provider.catalog.rest import PatientRestCatalog
from airflow_lake_provider.dataset import LAYERS, DatasetName, Layer
from airflow_lake_provider.errors import CommitConflict, LeaseLost, NoSpaceLeft
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.ledger import File, leases
from airflow_lake_provider.medallion.embedded.tables import TableChange
from tests.command import Command
from tests.rest_catalog import RestCatalogServer
from tests.test_commits import DATASET, NAME, PLACE, check, ingest, small_csv

PATIENCE = 40  # seconds after which a test gives up on a thread that hangs


@pytest.fixture(autouse=True)
def _short_pauses(lake: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "FIRST_DELAY", 0.1)


class Attempt:
    """Work on the files of a dataset in a thread of its own, which can be held at one place."""

    def __init__(self, file_ids: list[str], dataset: DatasetName = NAME) -> None:
        self.files: list[File] = []
        self.error: BaseException | None = None
        self._ids = file_ids
        self._dataset = dataset
        self._reached = threading.Event()
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        try:
            with Lake() as opened:
                self.files = opened.process(self._dataset, self._ids)
        except BaseException as error:
            self.error = error
        finally:
            self._reached.set()

    @property
    def held(self) -> bool:
        """Whether it has come to its place."""
        return self._reached.is_set()

    @property
    def here(self) -> bool:
        """Whether the caller runs in this attempt's thread."""
        return threading.current_thread() is self._thread

    def hold(self) -> None:
        """The place where the attempt is held; others pass by, and so does it from the second time on."""
        if self.here and not self._reached.is_set():
            self._reached.set()
            assert self._go.wait(PATIENCE)

    def start(self) -> None:
        self._thread.start()

    def run_to_the_place(self) -> None:
        """Start, and wait until it is held."""
        self.start()
        assert self._reached.wait(PATIENCE)
        assert self._thread.is_alive(), self.error or self.files

    def go_on(self) -> None:
        """Let it go on."""
        self._go.set()

    def let_go(self) -> list[File]:
        """Let it go on to its end; gives the files as it has them then."""
        self.go_on()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.files


def hold_at(monkeypatch: pytest.MonkeyPatch, attempt: Attempt, layer: str, moment: str) -> None:
    """Hold the attempt at one table: once it has ``begun`` on its base, when all is ``computed`` and only the commit is
    left, or when it is ``fenced``: the fence has let it through, and the request goes to the catalog.
    """
    if moment == "begun":
        begin = TableChange.__init__

        def begun(self: TableChange, catalog: Catalog, dataset: DatasetName, which: Layer) -> None:
            begin(self, catalog, dataset, which)
            if which == layer:
                attempt.hold()

        monkeypatch.setattr(TableChange, "__init__", begun)
    elif moment == "computed":
        # A table that is not there is created first, in a commit of its own.
        for name in ("create", "commit"):
            _hold_before(monkeypatch, name, attempt, layer)
    else:
        assert moment == "fenced"
        for kind in (SqlCatalog, RestCatalog):
            _hold_in_catalog(monkeypatch, kind, attempt, layer)


def _hold_before(monkeypatch: pytest.MonkeyPatch, name: str, attempt: Attempt, layer: str) -> None:
    method = getattr(TableChange, name)

    def computed(self: TableChange, *args: Any, **options: Any) -> bool:
        if self.layer == layer:
            attempt.hold()
        return bool(method(self, *args, **options))

    monkeypatch.setattr(TableChange, name, computed)


def _hold_in_catalog(monkeypatch: pytest.MonkeyPatch, kind: Any, attempt: Attempt, layer: str) -> None:
    commit_table = kind.commit_table

    def fenced(self: Catalog, table: Table, *args: Any) -> Any:
        if table.name()[0] == layer:
            attempt.hold()
        return commit_table(self, table, *args)

    monkeypatch.setattr(kind, "commit_table", fenced)


class Commits:
    """Which tables an attempt has committed its rows to, in order, and that it was ``refused`` that or a table's
    creation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, attempt: Attempt) -> None:
        self.done: list[str] = []
        self.refused: type[BaseException] | None = None
        self.ended = threading.Event()
        create, commit = TableChange.create, TableChange.commit

        def created(change: TableChange, *args: Any) -> bool:
            with self._watched(attempt):
                return create(change, *args)

        def committed(change: TableChange, *args: Any, **options: Any) -> bool:
            with self._watched(attempt):
                changed = commit(change, *args, **options)
            if attempt.here and changed:
                self.done.append(change.layer)
            if attempt.here and attempt.held:
                self.ended.set()
            return changed

        monkeypatch.setattr(TableChange, "create", created)
        monkeypatch.setattr(TableChange, "commit", committed)

    @contextmanager
    def _watched(self, attempt: Attempt) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if attempt.here:
                self.refused = self.refused or type(error)
                self.ended.set()
            raise


def expire(ledger_dsn: str) -> None:
    """End the lease of whoever holds the dataset, as time would."""
    with psycopg.connect(ledger_dsn, autocommit=True) as connection:
        done = connection.execute("UPDATE lake.datasets SET lease_expires = clock_timestamp() - interval '1 s'")
        assert done.rowcount == 1


def upload(path: Path, dataset: DatasetName = NAME) -> File:
    with Lake() as opened:
        (uploaded,) = opened.upload([path], dataset)
    assert uploaded.file is not None
    return uploaded.file


def process(*file_ids: str, dataset: DatasetName = NAME) -> list[File]:
    with Lake() as opened:
        return opened.process(dataset, file_ids)


def status(file_id: str) -> File:
    with Lake() as opened:
        return opened.ledger.file(file_id)


@pytest.fixture(params=["embedded", "rest"])
def catalog(
    request: pytest.FixtureRequest, lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The kind of catalog that the ``lake`` of this test uses: one in the ledger's database, or a REST catalog."""
    monkeypatch.setenv("LAKE_RETRY_SECONDS", "10")
    if request.param == "embedded":
        yield "embedded"
        return
    with RestCatalogServer(tmp_path / "rest") as server:
        monkeypatch.setenv("LAKE_CATALOG_TYPE", "rest")
        monkeypatch.setenv("LAKE_CATALOG_URI", server.uri)
        monkeypatch.setenv("LAKE_WAREHOUSE", str(server.tables))
        yield "rest"


NEW, EXIST = "new tables", "tables that exist"


def some_rows(lake: Command, tmp_path: Path, tables: str) -> int:
    """The rows of another file, where the tables shall exist."""
    if tables == NEW:
        return 0
    assert ingest(lake, small_csv(tmp_path, "other.csv")).code == 0
    return 3


@pytest.mark.parametrize(
    ("moment", "layer", "tables"),
    [
        ("begun", "bronze", NEW),
        ("begun", "silver", EXIST),
        ("computed", "bronze", EXIST),
        ("computed", "silver", NEW),
        ("computed", "gold", EXIST),
        *(("fenced", layer, tables) for layer in LAYERS for tables in (NEW, EXIST)),
    ],
)
def test_the_later_attempt_commits_first(
    catalog: str,
    lake: Command,
    ledger_dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    layer: Layer,
    tables: str,
) -> None:
    before = some_rows(lake, tmp_path, tables)
    file = upload(small_csv(tmp_path, "a.csv"))
    first = Attempt([file.file_id])
    commits = Commits(monkeypatch, first)
    hold_at(monkeypatch, first, layer, moment)
    first.run_to_the_place()
    expire(ledger_dsn)
    (done,) = process(file.file_id)
    assert (done.status, done.attempt) == ("ready", 2)
    (seen,) = first.let_go()
    assert commits.done == list(LAYERS[: LAYERS.index(layer)])
    assert commits.refused in (LeaseLost, CommitConflict)
    assert (seen.status, seen.attempt) == ("ready", 2)
    check(before + 3)


@pytest.mark.parametrize("tables", [NEW, EXIST])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_older_attempt_commits_while_the_later_one_computes(
    catalog: str,
    lake: Command,
    ledger_dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layer: Layer,
    tables: str,
) -> None:
    before = some_rows(lake, tmp_path, tables)
    file = upload(small_csv(tmp_path, "a.csv"))
    first, second = Attempt([file.file_id]), Attempt([file.file_id])
    commits = Commits(monkeypatch, first)
    hold_at(monkeypatch, first, layer, "fenced")
    first.run_to_the_place()
    expire(ledger_dsn)
    hold_at(monkeypatch, second, layer, "computed")
    second.run_to_the_place()
    first.go_on()
    assert commits.ended.wait(PATIENCE)
    (done,) = second.let_go()
    assert done.status == "ready"
    first.let_go()
    check(before + 3)


@pytest.mark.parametrize("tables", [NEW, EXIST])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_later_attempt_finds_the_file_changed(
    catalog: str,
    lake: Command,
    ledger_dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layer: Layer,
    tables: str,
) -> None:
    before = some_rows(lake, tmp_path, tables)
    file = upload(small_csv(tmp_path, "a.csv"))
    first = Attempt([file.file_id])
    hold_at(monkeypatch, first, layer, "fenced")
    first.run_to_the_place()
    expire(ledger_dsn)
    Path(file.raw_uri.removeprefix("file://")).write_text("something else")
    (done,) = process(file.file_id)
    assert done.status == "failed"
    (seen,) = first.let_go()
    assert seen.status == "failed"
    check(before)


@pytest.mark.parametrize("tables", [NEW, EXIST])
@pytest.mark.parametrize("layer", ["bronze", "gold"])
def test_the_later_attempt_takes_the_rows_out(
    catalog: str,
    lake: Command,
    ledger_dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layer: Layer,
    tables: str,
) -> None:
    """With one attempt allowed, the file whose lease ran out is given up: what is in the tables of it goes."""
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "1")
    before = some_rows(lake, tmp_path, tables)
    file = upload(small_csv(tmp_path, "a.csv"))
    first = Attempt([file.file_id])
    hold_at(monkeypatch, first, layer, "fenced")
    first.run_to_the_place()
    expire(ledger_dsn)
    (done,) = process(file.file_id)
    assert done.status == "failed"
    (seen,) = first.let_go()
    assert seen.status == "failed"
    check(before)


@pytest.mark.parametrize("layer", ["bronze", "gold"])
def test_the_later_attempt_reads_with_other_settings(
    catalog: str, lake: Command, ledger_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: Layer
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,v\n1,NA\n2,3\n")
    file = upload(path)
    first = Attempt([file.file_id])
    hold_at(monkeypatch, first, layer, "fenced")
    first.run_to_the_place()
    expire(ledger_dsn)
    with Lake() as opened:
        opened.ledger.change_settings(NAME, {"null_tokens": ["NA"]})
    (done,) = process(file.file_id)
    assert done.status == "ready"
    first.let_go()
    assert lake("show", "gold", DATASET, "--json").lines == [["1", None], ["2", "3"]]
    check(2)


def hold_at_drop(monkeypatch: pytest.MonkeyPatch, attempt: Attempt, layer: str, moment: str) -> None:
    """Hold the attempt ``before`` or ``after`` it drops a table."""

    def patched(drop_table: Callable[..., None]) -> Callable[..., None]:
        def held(self: Catalog, identifier: tuple[str, ...], *args: Any) -> None:
            mine = identifier[0] == layer
            if mine and moment == "before":
                attempt.hold()
            drop_table(self, identifier, *args)
            if mine and moment == "after":
                attempt.hold()

        return held

    for kind in (SqlCatalog, RestCatalog):
        monkeypatch.setattr(kind, "drop_table", patched(kind.drop_table))


def no_space_in_gold(monkeypatch: pytest.MonkeyPatch, attempt: Attempt) -> None:
    """Let the attempt fail once two of the three tables hold the rows."""
    commit = TableChange.commit

    def full(self: TableChange, *args: Any, **options: Any) -> bool:
        if attempt.here and self.layer == "gold":
            raise NoSpaceLeft("There is no space left.")
        return commit(self, *args, **options)

    monkeypatch.setattr(TableChange, "commit", full)


@pytest.mark.parametrize("layer", ["bronze", "silver"])
# A REST catalog drops what is there and looks at no lease: what docs/jobs.md says of it.
@pytest.mark.parametrize(
    ("catalog", "moment"), [("embedded", "before"), ("embedded", "after"), ("rest", "after")], indirect=["catalog"]
)
def test_an_older_attempt_drops_no_newer_table(
    catalog: str,
    lake: Command,
    ledger_dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    layer: str,
) -> None:
    """Taking out the only file drops the tables; while that is under way, another file is read in by somebody else."""
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "1")
    file = upload(small_csv(tmp_path, "a.csv"))
    removal = Attempt([file.file_id])
    no_space_in_gold(monkeypatch, removal)
    hold_at_drop(monkeypatch, removal, layer, moment)
    removal.run_to_the_place()
    assert status(file.file_id).status == "failing"
    expire(ledger_dsn)
    later = upload(small_csv(tmp_path, "b.csv"))
    (done,) = process(later.file_id)
    assert done.status == "ready"
    removal.let_go()
    with psycopg.connect(ledger_dsn, autocommit=True) as connection:
        connection.execute("UPDATE lake.files SET not_before = NULL")  # the pause after a death
    (done,) = process(file.file_id)
    assert done.status == "failed"
    check(3)


# -- many at once ------------------------------------------------------------------------------------------------------


def test_many_make_the_namespaces_at_once(
    catalog: str, lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four find that there is no namespace before any of them makes it."""
    datasets = [DatasetName("v", "p", f"d{number}") for number in range(4)]
    together = {layer: threading.Barrier(len(datasets)) for layer in LAYERS}
    looked: set[tuple[int, str]] = set()
    kind: Any = PostgresCatalog if catalog == "embedded" else PatientRestCatalog
    exists = kind.namespace_exists

    def all_look_first(self: Catalog, namespace: Layer) -> bool:
        found: bool = exists(self, namespace)
        if (me := (threading.get_ident(), namespace)) not in looked:
            looked.add(me)
            together[namespace].wait(PATIENCE)
        return found

    files = [upload(small_csv(tmp_path, f"{each.folder}.csv"), each) for each in datasets]
    attempts = [Attempt([file.file_id], each) for file, each in zip(files, datasets, strict=True)]
    with monkeypatch.context() as patch:
        patch.setattr(kind, "namespace_exists", all_look_first)
        for attempt in attempts:
            attempt.start()
        assert [file.status for attempt in attempts for file in attempt.let_go()] == ["ready"] * len(datasets)
    assert len(looked) == len(datasets) * len(LAYERS)
    for each in datasets:
        check(3, each)


SHIFTED = """
import datetime, sys, time

HOURS = float(sys.argv.pop(1))
now = time.time
now_ns = time.time_ns
time.time = lambda: now() + HOURS * 3600
time.time_ns = lambda: now_ns() + int(HOURS * 3600) * 10**9


class Shifted(datetime.datetime):
    __slots__ = ()  # of the size that compiled modules expect

    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(hours=HOURS)

    @classmethod
    def utcnow(cls):
        return super().utcnow() + datetime.timedelta(hours=HOURS)


datetime.datetime = Shifted
from airflow_lake_provider.cli import main

sys.exit(main(sys.argv[1:]))
"""


def run(*words: object, script: str = "") -> subprocess.Popen[str]:
    """A ``lake`` command in a process of its own, or a Python script that calls it."""
    argv = [sys.executable, "-c", script] if script else [sys.executable, "-m", "airflow_lake_provider.cli"]
    return subprocess.Popen(
        [*argv, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for its end; gives its exit code and what it printed."""
    with process:
        output, error = process.communicate(timeout=3 * PATIENCE)
    return process.returncode, output, error


def test_four_processes_begin_with_nothing(
    lake: Command, empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a ledger is there, nor a catalog, nor a namespace."""
    monkeypatch.setenv("LAKE_LEDGER_DSN", empty_database)
    datasets = [DatasetName("v", "p", f"d{number}") for number in range(4)]
    started = [
        run("ingest", small_csv(tmp_path, f"{each.folder}.csv"), "--vendor=v", "--project=p", f"--folder={each.folder}")
        for each in datasets
    ]
    for process in started:
        code, output, error = end(process)
        assert (code, error) == (0, ""), output
    for each in datasets:
        check(3, each)


@pytest.mark.parametrize("hours", [-26, 26])
def test_the_clock_of_a_worker_does_not_matter(lake: Command, tmp_path: Path, hours: int) -> None:
    """One whose clock is wrong, then one whose clock is right, then the wrong one again."""
    for number, script in enumerate((SHIFTED, "", SHIFTED)):
        words = (hours,) if script else ()
        path = small_csv(tmp_path, f"{number}.csv")
        code, output, error = end(run(*words, "ingest", path, *PLACE, script=script))
        assert (code, error) == (0, ""), output
    check(9)


@pytest.mark.parametrize("hours", [-26, 26])
def test_a_lease_lasts_by_the_clock_of_the_database(
    lake: Command, ledger_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Whatever the clock of the one who holds it says, and of the one who would take it."""
    file = upload(small_csv(tmp_path, "a.csv"))
    first = Attempt([file.file_id])
    hold_at(monkeypatch, first, "silver", "computed")
    now = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + hours * 3600)
        first.run_to_the_place()
        with Lake() as opened:
            assert opened.ledger.claim("another", dataset=NAME) is None
    with Lake() as opened:
        assert opened.ledger.claim("another", dataset=NAME) is None
    assert [each.status for each in first.let_go()] == ["ready"]
    check(3)


# -- told to end -------------------------------------------------------------------------------------------------------

HELD = """
import sys, time
from airflow_lake_provider.cli import main
from airflow_lake_provider.medallion.embedded.tables import TableChange

layer, moment = sys.argv.pop(1), sys.argv.pop(1)
commit = TableChange.commit


def held(self, *args, **options):
    if self.layer == layer and moment == "before":
        print("held", flush=True)
        time.sleep(600)
    changed = commit(self, *args, **options)
    if self.layer == layer and moment == "after":
        print("held", flush=True)
        time.sleep(600)
    return changed


TableChange.commit = held
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("how", "layer", "moment", "code"),
    [
        (signal.SIGTERM, "bronze", "before", 143),
        (signal.SIGTERM, "silver", "after", 143),
        (signal.SIGTERM, "gold", "after", 143),
        (signal.SIGINT, "silver", "before", 130),
    ],
)
def test_files_are_handed_back_at_once(
    lake: Command, ledger_dsn: str, tmp_path: Path, how: signal.Signals, layer: str, moment: str, code: int
) -> None:
    path = small_csv(tmp_path, "a.csv")
    process = run(layer, moment, "ingest", path, *PLACE, script=HELD)
    assert process.stdout is not None
    while (line := process.stdout.readline().strip()) != "held":
        assert line, end(process)
    process.send_signal(how)
    ended, _, error = end(process)
    assert ended == code
    assert error.startswith("lake: stopped")
    with psycopg.connect(ledger_dsn) as connection:
        assert connection.execute("SELECT status FROM lake.files").fetchall() == [("uploaded",)]
        assert connection.execute("SELECT lease_token FROM lake.datasets").fetchall() == [(None,)]
    done = ingest(lake, path)
    assert [line["status"] for line in done.lines] == ["duplicate"], done
    check(3)


def test_a_second_signal_does_not_interrupt_the_handing_back(lake: Command, ledger_dsn: str, tmp_path: Path) -> None:
    path = small_csv(tmp_path, "a.csv")
    process = run("silver", "before", "ingest", path, *PLACE, script=HELD)
    assert process.stdout is not None
    while (line := process.stdout.readline().strip()) != "held":
        assert line, end(process)
    with psycopg.connect(ledger_dsn) as connection:
        connection.execute("SELECT * FROM lake.datasets FOR UPDATE")  # handing back waits for this
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    code, _, _ = end(process)
    assert code == 143
    with psycopg.connect(ledger_dsn) as connection:
        assert connection.execute("SELECT status FROM lake.files").fetchall() == [("uploaded",)]
    assert [line["status"] for line in ingest(lake, path).lines] == ["duplicate"]
    check(3)
