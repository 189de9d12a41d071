"""A folder for work in progress that goes with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from airflow_lake_provider.errors import NoSpaceLeft, StorageError

_PREFIX = "work-"


class Workspace:
    """A new folder under ``parent``, gone after ``close``; what killed processes left there is removed on the way.

    The folder is locked while its process lives, and the kernel frees it whatever the process dies of.
    Raises StorageError, NoSpaceLeft.
    """

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_left_behind(parent)
            self.path, self._lock = _locked_folder(parent)
        except OSError as error:
            if error.errno in NoSpaceLeft.ERRNOS:
                raise NoSpaceLeft(
                    f"There is no space left in {str(parent)!r}: make room there, and try again."
                ) from error
            raise StorageError(
                f"No temporary folder could be made in {str(parent)!r}: {error.strerror}; set LAKE_TEMP_DIR."
            ) from error

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # Until it is locked, another process may take it for one left behind.
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


def _remove_left_behind(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # locked, or removed by another process meanwhile
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
