"""The server process that works on a data folder, and what one that was killed left behind."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]

from airflow_lake_provider.errors import LedgerError
from airflow_lake_provider.ledger import postgres_host as host

# The children of a server that was killed notice it at once, unless they are busy.
_ORPHAN_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and the folder of its socket, where it has told."""

    pid: int
    socket: Path | None


def find_server(data: Path) -> Server | None:
    """The server that runs on this very folder, wherever it was when the server started.

    A number in ``postmaster.pid`` proves nothing: it may belong to another process by now, or to the server of the
    folder that this one was copied from.
    """
    lines = _pid_file(data)
    try:
        pid = int(lines[0])
    except (IndexError, ValueError):
        return None
    named = Path(lines[1]) if len(lines) > 1 else None
    if not _is_server_of(pid, data, named):
        return None
    folder = lines[4] if len(lines) > 4 else ""
    if not folder:
        return Server(pid, None)
    if named is not None and Path(folder) == named:
        # The socket moved along with its folder.
        return Server(pid, data)
    return Server(pid, Path(folder))


def clear_leftovers(data: Path, folder: Path) -> None:
    """Remove what a server that is gone left behind, which would keep the next one from starting.

    Postgres does so itself where the process number is free; after a restart of the machine it often is not.
    """
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while orphans := _processes_in(data):
        if time.monotonic() > deadline:
            raise LedgerError(
                f"An earlier Postgres still works in {data}: end its processes first ({', '.join(map(str, orphans))})."
            )
        time.sleep(0.05)
    for path in (data / "postmaster.pid", *folder.glob(f".s.PGSQL.{host.PORT}*"), *data.glob(f".s.PGSQL.{host.PORT}*")):
        path.unlink(missing_ok=True)


def _pid_file(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _is_server_of(pid: int, data: Path, named: Path | None) -> bool:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or "postgres" not in process.name():
            return False
    except psutil.Error:
        return False
    folder = _working_folder(pid, data)
    if folder is None:
        # It cannot be seen where it works: then the path it was started with has to do.
        return named is not None and named == data
    return _same(folder, data)


def _processes_in(data: Path) -> list[int]:
    found = []
    for process in psutil.process_iter(["pid", "name", "status"]):
        known = process.info
        if known["status"] == psutil.STATUS_ZOMBIE or "postgres" not in (known["name"] or ""):
            continue
        folder = _working_folder(known["pid"], data)
        if folder is not None and _same(folder, data):
            found.append(known["pid"])
    return found


def _working_folder(pid: int, data: Path) -> Path | None:
    with suppress(psutil.Error, OSError):
        return Path(psutil.Process(pid).cwd())
    # Root in a container may lack the right to look into another user's process; that user has it.
    readlink = shutil.which("readlink", path="/usr/bin:/bin")
    if readlink is None or os.geteuid() != 0:
        return None
    with suppress(LedgerError):
        code, output = host.run(readlink, f"/proc/{pid}/cwd", account=host.account_for(data))
        if code == 0:
            return Path(output.strip())
    return None


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
