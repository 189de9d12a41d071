"""A Postgres of our own for where there is none: started on demand, shared by all processes, stopped on request.

It belongs to a home folder: the data is in ``home/postgres``, and ``home/postgres.json`` says how to reach the server.
It listens on a Unix socket alone, which only its user and root can open, and keeps running when the process that
started it ends. Nothing that reaches the disk is given up for speed: this may be the only copy there is.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from airflow_lake_provider.errors import LedgerError, LedgerUnavailable
from airflow_lake_provider.ledger import postgres_host as host
from airflow_lake_provider.ledger.postgres_process import Server, clear_leftovers, find_server
from airflow_lake_provider.ledger.postgres_state import State, identity, locked, read, write

log = logging.getLogger(__name__)

DATABASE: Final = "lake"
SUPERUSER: Final = "postgres"

# Small and quiet: a ledger has little data and few clients at a time. Durability is left at its safe defaults.
_SETTINGS: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "work_mem": "4MB",
    "maintenance_work_mem": "32MB",
    "max_wal_size": "256MB",
    "max_parallel_workers_per_gather": "0",
    "max_logical_replication_workers": "0",
    "jit": "off",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # A client that hangs in the middle of a transaction would hold up everyone.
    "idle_in_transaction_session_timeout": "10min",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # One log for each day of the week, so that they never grow without bound.
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgresql-%a.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
}
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """How the embedded Postgres of a home is: ``data`` is None where there is none yet, ``note`` is for people."""

    running: bool
    pid: int | None
    dsn: str | None
    data: Path | None
    version: int | None
    note: str | None


def start(home: Path) -> str:
    """The DSN of the home's Postgres, which is created and started where it is not running yet.

    Raises LedgerError where it cannot run here, in a sentence that says why and what to do.
    """
    home = Path(os.path.abspath(home.expanduser()))
    state = read(home)
    if state is not None and _answers(home, state):
        return _dsn(state.socket_folder(home))
    with locked(home):
        state = read(home)
        if state is not None and _answers(home, state):
            return _dsn(state.socket_folder(home))
        return _start(home, state)


def stop(home: Path) -> bool:
    """Stop the home's Postgres after its running transactions were rolled back; False where it was not running."""
    home = Path(os.path.abspath(home.expanduser()))
    if not home.is_dir():
        return False
    with locked(home):
        state = read(home)
        data = _data_folder(home, state)
        server = find_server(data) if data is not None else None
        if server is None or data is None:
            return False
        _end(server, data)
        return True


def status(home: Path) -> EmbeddedStatus:
    """How the home's Postgres is, without starting it."""
    home = Path(os.path.abspath(home.expanduser()))
    state = read(home) if home.is_dir() else None
    data = _data_folder(home, state) if home.is_dir() else None
    if data is None:
        return EmbeddedStatus(False, None, None, None, None, None)
    server = find_server(data)
    note = None
    if data != home / "postgres":
        note = f"The data is in {data}, since the server's user cannot enter {home}."
    dsn = None
    if server is not None:
        dsn = _dsn(state.socket_folder(home) if state is not None else server.socket or data)
    return EmbeddedStatus(
        running=server is not None,
        pid=server.pid if server else None,
        dsn=dsn,
        data=data,
        version=_major(data),
        note=note,
    )


def _start(home: Path, state: State | None) -> str:
    data, account = _place(home, state)
    major = _major(data)
    found = host.binaries(account, major)
    if major is None:
        _initialise(data, found, account)
    server = find_server(data)
    former = state.socket if state is not None else None
    folder = host.socket_folder(data, account, former)
    if server is not None:
        folder = server.socket or folder
        if not _reachable(folder):
            # As after the move of a home to where the path of the socket is too long.
            _end(server, data)
            server, folder = None, host.socket_folder(data, account, former)
    if server is None:
        clear_leftovers(data, folder)
        _launch(data, folder, found, account)
    _await(lambda: _connects(folder), _START_SECONDS, f"The embedded Postgres in {data} does not answer")
    _ensure_database(folder)
    write(
        home,
        State(
            data=None if data == home / "postgres" else str(data),
            socket=None if folder == data else str(folder),
            home_id=identity(home),
            data_id=identity(data),
        ),
    )
    return _dsn(folder)


def _place(home: Path, state: State | None) -> tuple[Path, host.Account]:
    """Where the data is or goes, and whose it is."""
    data = home / "postgres"
    if _major(data) is None and state is not None and state.data is not None and _major(Path(state.data)) is not None:
        data = Path(state.data)
        _refuse_copy(home, data)
        (data.parent / "home").write_text(str(home), encoding="utf-8")
        return data, host.account_for(data)
    if _major(data) is not None:
        account = host.account_for(data)
        if not host.reaches(account, home):
            raise LedgerError(
                f"The embedded Postgres in {data} cannot be started: it runs as the user {account.name}, who cannot "
                f"enter {home}; open the folders above it (chmod o+x), or move the home elsewhere."
            )
        return data, account
    account = host.account_for(data)
    if host.reaches(account, home):
        return data, account
    try:
        folder = host.SHARED / f"home-{uuid.uuid4().hex[:12]}"
        folder.mkdir(parents=True)
    except OSError as error:
        raise LedgerError(
            f"The embedded Postgres cannot keep its data in {data}, since it runs as the user {account.name}, who "
            f"cannot enter {home}, nor in {host.SHARED} ({error.strerror}): choose a home that others can enter, or "
            "run this as a normal user."
        ) from error
    (folder / "home").write_text(str(home), encoding="utf-8")
    log.warning(
        "The embedded Postgres keeps its data in %s, since it runs as the user %s, who cannot enter %s.",
        folder / "postgres",
        account.name,
        home,
    )
    return folder / "postgres", account


def _refuse_copy(home: Path, data: Path) -> None:
    """Two homes must not share data that lies outside of both; the one that is moved takes it along."""
    try:
        other = Path((data.parent / "home").read_text(encoding="utf-8"))
    except OSError:
        return
    if other == home or not other.is_dir() or _same(other, home):
        return
    state = read(other)
    if state is not None and state.data == str(data):
        raise LedgerError(
            f"The home {home} is a copy of {other}, whose database is in {data} and cannot serve both: remove "
            f"{home / 'postgres.json'} to begin with an empty ledger, or use the other home."
        )


def _initialise(data: Path, found: host.Binaries, account: host.Account) -> None:
    if data.is_dir() and any(data.iterdir()):
        raise LedgerError(
            f"The embedded Postgres cannot use {data}: it has files that are no database; move them away."
        )
    fresh = data.with_name("postgres.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    host.own(fresh, account)
    code, output = host.run(
        found.folder / "initdb",
        f"--pgdata={fresh}",
        f"--username={SUPERUSER}",
        # Whoever can open the socket is the server's user or root.
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--no-instructions",
        account=account,
    )
    if code != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise LedgerError(f"The embedded Postgres could not be created in {data}: {_last_line(output)}.")
    with suppress(OSError):
        data.rmdir()
    # In one step: a start that is cut short leaves nothing that looks like a database.
    fresh.rename(data)


def _launch(data: Path, folder: Path, found: host.Binaries, account: host.Account) -> None:
    settings = dict(_SETTINGS, unix_socket_directories=str(folder), port=str(host.PORT))
    if found.major >= 18:
        # Worker processes for reading ahead are of no use here.
        settings["io_method"] = "sync"
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    startup = data / "startup.log"
    startup.unlink(missing_ok=True)
    began = time.time()
    # Folders come by the environment and the working folder, since pg_ctl hands its arguments to a shell unquoted.
    code, output = host.run(
        found.folder / "pg_ctl",
        f"--log={startup.name}",
        f"--options={shlex.join(words)}",
        f"--timeout={_START_SECONDS:.0f}",
        "--wait",
        "--silent",
        "start",
        account=account,
        folder=data,
        environment={"PGDATA": str(data)},
        timeout=_START_SECONDS + 30,
    )
    if code != 0:
        raise LedgerError(
            f"The embedded Postgres in {data} did not start: {_why(data, output, began)}; its logs are {startup} "
            f"and in {data / 'log'}."
        )


def _why(data: Path, output: str, began: float) -> str:
    """What the server said last when it did not start; it changes over to its log folder on the way."""
    texts = [output]
    for path in (data / "startup.log", *(data / "log").glob("*.log")):
        with suppress(OSError):
            if path.stat().st_mtime >= began - 1:
                texts.append(path.read_text(encoding="utf-8", errors="replace"))
    said = [line for text in texts for line in text.splitlines() if "FATAL" in line or "PANIC" in line]
    return _last_line(said[-1] if said else output)


def _end(server: Server, data: Path) -> None:
    # Fast shutdown: transactions under way are rolled back, and the clients are told.
    os.kill(server.pid, signal.SIGINT)
    _await(lambda: find_server(data) is None, _STOP_SECONDS, f"The embedded Postgres in {data} did not stop")


def _ensure_database(folder: Path) -> None:
    import psycopg

    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with psycopg.connect(
                host=str(folder), port=host.PORT, user=SUPERUSER, dbname=SUPERUSER, autocommit=True
            ) as connection:
                query = "SELECT 1 FROM pg_database WHERE datname = %s"
                if connection.execute(query, (DATABASE,)).fetchone() is None:
                    connection.execute(f"CREATE DATABASE {DATABASE}")
            return
        except psycopg.OperationalError as error:
            # It accepts connections before it serves them, for as long as it recovers from a crash.
            if time.monotonic() > deadline:
                raise LedgerUnavailable(f"The embedded Postgres does not serve: {_last_line(str(error))}.") from error
            time.sleep(0.1)


def _answers(home: Path, state: State) -> bool:
    """Whether the server that the state tells of is this home's and up, at the cost of two stats and a connect."""
    try:
        known = state.home_id == identity(home) and state.data_id == identity(state.data_folder(home))
    except OSError:
        return False
    return known and _connects(state.socket_folder(home))


def _connects(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(folder / f".s.PGSQL.{host.PORT}"))
        except OSError:
            return False
        return True


def _reachable(folder: Path) -> bool:
    """Whether the socket of a server that runs can be opened, now or in a moment if it has only just begun."""
    deadline = time.monotonic() + 3
    while not _connects(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _dsn(folder: Path) -> str:
    return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(str(folder), safe='')}"


def _data_folder(home: Path, state: State | None) -> Path | None:
    for data in (home / "postgres", *([state.data_folder(home)] if state is not None else [])):
        if _major(data) is not None:
            return data
    return None


def _major(data: Path) -> int | None:
    try:
        return int((data / "PG_VERSION").read_text(encoding="ascii"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        owner = host.account_for(data)
        raise LedgerError(f"The embedded Postgres in {data} cannot be read: it belongs to {owner.name}.") from None
    except ValueError:
        raise LedgerError(
            f"The file {data / 'PG_VERSION'} names no version: restore the folder from a backup."
        ) from None


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _await(done: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise LedgerUnavailable(f"{what} within {seconds:g} s: look at its logs.")
        time.sleep(0.02)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wanted = [line for line in lines if "FATAL" in line or "error:" in line]
    return (wanted or lines or ["it said nothing"])[-1].rstrip(".")
