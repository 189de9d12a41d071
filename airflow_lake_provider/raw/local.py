"""Raw files in a folder of this machine (or of a network file system)."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from airflow_lake_provider.errors import NoSpaceLeft, RawFileMissing, StorageError, StorageUnavailable

CHUNK = 1 << 20
_TEMPORARY = ".upload-"
# What a network file system answers while its server is away.
_AWAY = (errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENOTCONN)


class LocalFolder:
    """Reads, writes and removes single files; whatever has a name is complete."""

    def size(self, uri: str) -> int | None:
        """Bytes of the file, or None where there is none."""
        with _reported(Path(uri), "looked up"):
            try:
                return Path(uri).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read(self, uri: str) -> Iterator[bytes]:
        """The bytes of the file, in pieces; raises RawFileMissing."""
        try:
            with _reported(Path(uri), "read"), open(uri, "rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
        except (FileNotFoundError, NotADirectoryError):
            raise RawFileMissing(
                f"The uploaded file {uri!r} is gone from raw storage: upload it again, or put it back from a backup."
            ) from None

    def write(self, uri: str, chunks: Iterable[bytes]) -> None:
        """Make the file from ``chunks``; it appears whole, on disk, or not at all."""
        write_whole(Path(uri), chunks)

    def delete(self, uri: str) -> None:
        """Remove the file, what an upload of it may have left, and the folders that held nothing else."""
        path = Path(uri)
        with _reported(path, "removed"):
            folder = path.parent
            if folder.is_dir():
                for each in (path, *folder.glob(f"{_TEMPORARY}*")):
                    each.unlink(missing_ok=True)
                _sync_folder(folder)
            # The file's own folder, then those of the three parts of its dataset.
            _remove_empty(path.parents[level] for level in range(4))


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file that appears whole and on disk, or not at all; missing folders are made.

    An error raised by ``chunks`` passes through, and as with any other error nothing is left behind, neither a part of
    the file nor a folder that was made for it. Raises NoSpaceLeft, StorageUnavailable, StorageError.
    """
    temporary = path.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
    made: list[Path] = []
    with _reported(path, "written"):
        try:
            _make_folders(path.parent, made)
            with open(temporary, "xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
            for folder in (path.parent, *(each.parent for each in made)):
                _sync_folder(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            _remove_empty(reversed(made))
            raise


def _make_folders(folder: Path, made: list[Path]) -> None:
    """Make what is missing of ``folder``, outermost first, and note it in ``made``."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        # Someone who removes the last file of a dataset may take a folder away again just now.
        for _ in range(20):
            try:
                each.mkdir(parents=True)
            except FileExistsError:
                break
            except FileNotFoundError:
                continue
            made.append(each)
            break
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders that are empty, innermost first, up to the first one that is not."""
    for folder in folders:
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return


def _sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that know no such thing
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _reported(path: Path, verb: str) -> Iterator[None]:
    """Turn what the operating system reports into this package's errors; a missing file is left to the caller."""
    try:
        yield
    except OSError as error:
        if verb == "read" and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise
        reason = error.strerror or type(error).__name__
        if error.errno in NoSpaceLeft.ERRNOS:
            raise NoSpaceLeft(
                f"{str(path)!r} could not be {verb}: {reason}; free some space, or choose another place."
            ) from None
        kind = StorageUnavailable if error.errno in _AWAY else StorageError
        raise kind(
            f"{str(path)!r} could not be {verb}: {reason}; see that its folder is there and may be written to."
        ) from None
