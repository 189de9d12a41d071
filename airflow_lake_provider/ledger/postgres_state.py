"""What a home remembers of its embedded Postgres, and the lock under which that is changed."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_lake_provider.errors import LedgerError


@dataclass(frozen=True, slots=True)
class State:
    """What ``postgres.json`` holds. Paths are None where they follow from the home, which may be moved.

    The identities tell a home that was moved from one that was copied, and both from the one that is meant.
    """

    data: str | None
    socket: str | None
    home_id: str
    data_id: str

    def data_folder(self, home: Path) -> Path:
        return Path(self.data) if self.data is not None else home / "postgres"

    def socket_folder(self, home: Path) -> Path:
        return Path(self.socket) if self.socket is not None else self.data_folder(home)


def identity(folder: Path) -> str:
    found = folder.stat()
    return f"{found.st_dev}:{found.st_ino}"


def read(home: Path) -> State | None:
    path = home / "postgres.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return State(**found)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise LedgerError(f"{path} cannot be read: run this as the user who started the embedded Postgres.") from error
    except (ValueError, TypeError):
        # Whatever it was, it can be written anew from what is there.
        return None


def write(home: Path, state: State) -> None:
    fresh = home / f".postgres.json.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        _give_to_owner(home, file.fileno())
        json.dump(asdict(state), file, indent=2)
    fresh.replace(home / "postgres.json")


def _give_to_owner(home: Path, file: int) -> None:
    """What root writes in somebody's home is his, or he could not go on."""
    found = os.fstat(file)
    # Only what is new: a link to another file is not to be given away.
    if os.geteuid() == 0 and found.st_uid == 0 and found.st_nlink == 1:
        owner = home.stat()
        os.fchown(file, owner.st_uid, owner.st_gid)


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """One process at a time starts or stops this home's server. The lock ends with the process, whatever happens."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / "postgres.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        _give_to_owner(home, lock)
    except OSError as error:
        raise LedgerError(
            f"The home {home} cannot be used for the embedded Postgres ({error.strerror}): choose one that can be "
            "written."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
