"""Keeping uploaded files: put in once, handed out verified, removed for good."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import (
    FileTooLarge,
    InvalidName,
    NotFound,
    RawFileChanged,
    RawFileMissing,
    SettingsError,
    StorageError,
)
from airflow_lake_provider.raw.local import CHUNK, LocalFolder, write_whole
from airflow_lake_provider.raw.names import clean_file_name

_FILE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class RawFile:
    """A stored file: where it is, its size in bytes and the SHA-256 of its bytes in hexadecimal.

    ``uri`` is the path of a local file, or ``s3://BUCKET/KEY``. Nothing in it is percent-encoded: what follows the
    last slash is the file's name, character by character.
    """

    uri: str
    size: int
    sha256: str


class _Place(Protocol):
    """What a kind of storage can do with one address."""

    def size(self, uri: str) -> int | None: ...
    def read(self, uri: str) -> Iterator[bytes]: ...
    def write(self, uri: str, chunks: Iterable[bytes]) -> None: ...
    def delete(self, uri: str) -> None: ...


class RawStore:
    """Uploaded files under one root, each at ``<root>/<vendor>/<project>/<folder>/<file id>/<name>``.

    ``root`` is an absolute folder or ``s3://BUCKET/PREFIX``; ``options`` are those of s3fs, the
    file system of fsspec for a bucket. ``max_bytes`` is the largest file that is taken. ``retry_seconds`` is how long
    each call to a bucket is repeated while it cannot be reached, before StorageUnavailable is raised.

    New files go under ``root``; files that were stored under an earlier root are still found by their address.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        options: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
        retry_seconds: float = 60.0,
    ) -> None:
        self.root = str(root).rstrip("/")
        self._options = dict(options or {})
        self._max_bytes = max_bytes
        self._retry_seconds = retry_seconds
        if not (self.root.startswith("/") or re.match(r"s3://[^/]", self.root)):
            raise SettingsError(f"The raw storage {str(root)!r} must be an absolute folder or s3://BUCKET/PREFIX.")

    def put(self, source: Path | BinaryIO, dataset: DatasetName, file_id: str, name: str | None = None) -> RawFile:
        """Store the bytes of ``source`` and return where, how many they are and their hash.

        ``name`` may be left out where ``source`` is a path: then it is the path's last part. The bytes pass through in
        pieces. The file appears whole or not at all. Storing the same bytes under the same id again changes nothing.

        Raises InvalidName, NotFound (no such source), FileTooLarge, NoSpaceLeft, StorageUnavailable, RawFileChanged
        (that id has other bytes already), StorageError.
        """
        if name is None:
            name = source.name if isinstance(source, Path) else ""
        uri = self.uri(dataset, file_id, name)
        place = self._place(uri)
        with _opened(source) as file:
            passing = _Passing(file, name, self._max_bytes)
            stored = place.size(uri)
            if stored is None:
                place.write(uri, passing)
            else:
                for _ in passing:
                    pass
                self._compare(uri, _digest(place.read(uri)), (passing.size, passing.sha256))
        return RawFile(uri, passing.size, passing.sha256)

    def uri(self, dataset: DatasetName, file_id: str, name: str) -> str:
        """Where ``put`` stores a file. Raises InvalidName."""
        if not _FILE_ID.fullmatch(file_id):
            raise InvalidName(f"The file id {file_id!r} cannot be used: it must be 1 to 64 of A-Z, a-z, 0-9, '_', '-'.")
        return f"{self.root}/{dataset}/{file_id}/{clean_file_name(name)}"

    def fetch(self, uri: str, to: Path, *, size: int, sha256: str) -> None:
        """Write the stored bytes to the local file ``to``, which appears only once they are verified.

        Raises RawFileMissing, RawFileChanged, NoSpaceLeft, StorageUnavailable, StorageError.
        """
        write_whole(to, self._verified(uri, size, sha256))

    def local_path(self, uri: str, *, size: int, sha256: str | None = None) -> Path | None:
        """The stored file itself where it is on this machine, else None.

        Its size is compared, and its hash too if ``sha256`` is given, which reads it once. Raises RawFileMissing,
        RawFileChanged, StorageError.
        """
        place = self._place(uri)
        if not isinstance(place, LocalFolder):
            return None
        if sha256 is None:
            found = place.size(uri)
            if found is None:
                raise RawFileMissing(
                    f"The uploaded file {uri!r} is gone from raw storage: upload it again, or restore a backup of it."
                )
            if found != size:
                raise _changed(uri, f"it has {found} bytes, and {size} were uploaded")
        else:
            for _ in self._verified(uri, size, sha256):
                pass
        return Path(uri)

    @contextlib.contextmanager
    def opened(self, uri: str, temp_dir: Path, *, size: int, sha256: str) -> Iterator[Path]:
        """A verified local file with the stored bytes and name: the stored one itself, or a copy for the while.

        The copy is made in a folder of its own under ``temp_dir`` and removed at the end. Raises as fetch does.
        """
        path = self.local_path(uri, size=size, sha256=sha256)
        if path is not None:
            yield path
            return
        try:
            temp_dir.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(dir=temp_dir, prefix="raw-")
        except OSError as error:
            raise StorageError(
                f"No temporary folder could be made in {str(temp_dir)!r}: {error.strerror}; set LAKE_TEMP_DIR."
            ) from None
        with folder:
            copy = Path(folder.name, uri.rsplit("/", 1)[1])
            self.fetch(uri, copy, size=size, sha256=sha256)
            yield copy

    def exists(self, uri: str) -> bool:
        """Whether there is a file at that address."""
        return self._place(uri).size(uri) is not None

    def delete(self, uri: str) -> None:
        """Remove the file, every version of it, what an upload of it that broke off has left, and the folders it leaves
        empty; nothing happens where it is gone.

        Raises StorageUnavailable, StorageError.
        """
        self._place(uri).delete(uri)

    def _place(self, uri: str) -> _Place:
        """The storage that an address belongs to; an address that no `put` can have given is refused."""
        root, *parts = uri.rsplit("/", 5)
        if len(parts) == 5 and _FILE_ID.fullmatch(parts[3]):
            with contextlib.suppress(InvalidName):
                DatasetName(*parts[:3])
                clean_file_name(parts[4])
                if root.startswith("/"):
                    return LocalFolder()
                if re.match(r"s3://[^/]", root):
                    return self._bucket
        raise StorageError(f"{uri!r} is not the address of an uploaded file: it was not made by this raw storage.")

    @functools.cached_property
    def _bucket(self) -> _Place:
        try:
            from airflow_lake_provider.raw.s3 import Buckets
        except ModuleNotFoundError:
            raise SettingsError(
                "Raw storage in a bucket needs s3fs: install it with pip install 'airflow-provider-lake[s3]'."
            ) from None
        return Buckets(self._options, max_bytes=self._max_bytes, retry_seconds=self._retry_seconds)

    def _verified(self, uri: str, size: int, sha256: str) -> Iterator[bytes]:
        """The stored bytes; raises RawFileChanged at the end, or as soon as there are too many of them."""
        digest = hashlib.sha256()
        seen = 0
        for chunk in self._place(uri).read(uri):
            seen += len(chunk)
            if seen > size:
                raise _changed(uri, f"it has more than the {size} bytes that were uploaded")
            digest.update(chunk)
            yield chunk
        self._compare(uri, (seen, digest.hexdigest()), (size, sha256))

    @staticmethod
    def _compare(uri: str, found: tuple[int, str], expected: tuple[int, str]) -> None:
        if found[0] != expected[0]:
            raise _changed(uri, f"it has {found[0]} bytes, and {expected[0]} were uploaded")
        if found[1] != expected[1].lower():
            raise _changed(uri, "its SHA-256 is another one")


class _Passing:
    """The bytes of an upload on their way: counted, hashed, and stopped where they are too many."""

    def __init__(self, file: BinaryIO, name: str, max_bytes: int | None) -> None:
        self._file = file
        self._name = name
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._read():
            self.size += len(chunk)
            if self._max_bytes is not None and self.size > self._max_bytes:
                raise FileTooLarge(
                    f"The file {self._name!r} has more than {self._max_bytes} bytes, the most that is allowed: "
                    "split it, or raise LAKE_MAX_FILE_BYTES."
                )
            self._digest.update(chunk)
            yield chunk

    def _read(self) -> bytes:
        try:
            return self._file.read(CHUNK)
        except OSError as error:
            raise StorageError(
                f"The file {self._name!r} could not be read to its end: {error.strerror or type(error).__name__}; "
                "see that it can be read, and upload it again."
            ) from None


@contextlib.contextmanager
def _opened(source: Path | BinaryIO) -> Iterator[BinaryIO]:
    if not isinstance(source, Path):
        yield source
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise NotFound(
            f"The file {str(source)!r} cannot be opened: {error.strerror}; name a file that can be read."
        ) from None
    with file:
        yield file


def _digest(chunks: Iterable[bytes]) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    for chunk in chunks:
        size += len(chunk)
        digest.update(chunk)
    return size, digest.hexdigest()


def _changed(uri: str, how: str) -> RawFileChanged:
    return RawFileChanged(f"The stored file {uri!r} is not what was uploaded: {how}; upload it again.")
