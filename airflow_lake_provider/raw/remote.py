"""Raw files behind an fsspec file system: streamed in parts, complete or absent, patient with outages."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_lake_provider.errors import RawFileMissing, StorageError, StorageUnavailable

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")

PART = 16 << 20
"""Bytes that are held in memory and sent or fetched at once."""


class RemoteFiles:
    """Reads, writes and removes single files of a file system that is reached over a network.

    ``connect`` makes the file system; it must not cache listings, take a path for one name, character by character, and
    keep a file that is opened with ``autocommit=False`` out of sight until it is committed.
    ``part`` is the size in bytes of the parts in which a file over PART is sent. ``is_outage`` tells whether an error
    may pass, so that trying again for ``retry_seconds`` makes sense, ``translated`` makes any other one, for the
    address and the verb that are given, one of this package's errors.

    A single step of a file that is being written is not repeated here, because fsspec's files are of no use after an
    error: a file system that can repeat the requests behind it does so itself.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractFileSystem],
        *,
        part: int,
        retry_seconds: float,
        is_outage: Callable[[Exception], bool],
        translated: Callable[[Exception, str, str], Exception],
    ) -> None:
        self._connect = connect
        self._part = part
        self._retry_seconds = retry_seconds
        self._is_outage = is_outage
        self._translated = translated
        self._systems: dict[int, Any] = {}
        self._connecting = threading.Lock()

    def size(self, uri: str) -> int | None:
        """Bytes of the file, or None where there is none."""
        system = self._system()
        try:
            found = self._call(uri, "looked up", lambda: system.info(_path(uri)))
        except RawFileMissing:
            return None
        # Where other names continue this one, it may pass for a folder.
        return int(found["size"]) if found["type"] == "file" else None

    def read(self, uri: str) -> Iterator[bytes]:
        """The bytes of the file, in pieces; a broken connection is taken up where it broke."""
        system = self._system()
        with self._call(uri, "read", lambda: system.open(_path(uri), "rb", cache_type="none")) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size == 0 and self.size(uri) is None:
                raise self._translated(FileNotFoundError(), uri, "read")
            offset = 0
            while offset < size:
                piece = self._call(uri, "read", lambda: _some(file, min(PART, size - file.tell())))
                offset += len(piece)
                yield piece

    def write(self, uri: str, chunks: Iterable[bytes]) -> None:
        """Make the file from ``chunks``; it appears whole or not at all."""
        system = self._system()
        pieces = parts(chunks, self._part)
        held = list(itertools.islice(pieces, 2))
        if len(held) == 1 and len(held[0]) <= PART:
            self._call(uri, "written", lambda: system.pipe_file(_path(uri), held[0]))
            return
        file = self._once(
            uri, "written", lambda: system.open(_path(uri), "wb", block_size=self._part, autocommit=False)
        )
        size = 0
        try:
            for piece in _emptied(held, pieces):
                size += len(piece)
                self._once(uri, "written", lambda piece=piece: file.write(piece))  # type: ignore[misc]
            self._once(uri, "written", file.close)
            self._commit(uri, file, size)
        except BaseException:
            _discard(file)
            raise

    def delete(self, uri: str) -> None:
        """Remove the file."""
        system = self._system()
        with contextlib.suppress(RawFileMissing):
            self._call(uri, "removed", lambda: system.rm_file(_path(uri)))

    def _commit(self, uri: str, file: Any, size: int) -> None:
        try:
            self._once(uri, "written", file.commit)
        except StorageUnavailable:
            raise
        except StorageError:
            # Where the answer to a commit was lost, asking again finds nothing to be committed any more.
            if self.size(uri) != size:
                raise

    def _system(self) -> Any:
        """The file system; after a fork a new one, because the threads behind the old one stayed in the parent."""
        with self._connecting:
            # The old one is kept: to let it go is to close connections that the parent uses.
            if os.getpid() not in self._systems:
                self._systems[os.getpid()] = self._connect()
            return self._systems[os.getpid()]

    def _call(self, uri: str, verb: str, action: Callable[[], T]) -> T:
        """Do something with a file, repeated while the storage is away; raises this package's errors."""
        patience = Patience(self._retry_seconds)
        while True:
            try:
                return action()
            except Exception as error:
                pause = patience.pause() if self._is_outage(error) else None
                if pause is None:
                    raise self._reported(error, uri, verb) from None
            threading.Event().wait(pause)

    def _once(self, uri: str, verb: str, action: Callable[[], T]) -> T:
        """Do something with a file that cannot be repeated; raises this package's errors."""
        try:
            return action()
        except Exception as error:
            raise self._reported(error, uri, verb) from None

    def _reported(self, error: Exception, uri: str, verb: str) -> Exception:
        if not self._is_outage(error):
            return self._translated(error, uri, verb)
        return StorageUnavailable(
            f"{uri!r} could not be {verb} for {self._retry_seconds:g} s, the storage cannot be reached "
            f"({error_code(error) or type(error).__name__}): see that it is up and that its address is right."
        )


class Patience:
    """Waits longer each time, until the time is used up."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._pause = 0.2

    def pause(self) -> float | None:
        """Seconds to wait before the next try, or None where there should be none."""
        pause = self._pause
        if time.monotonic() + pause > self._deadline:
            return None
        self._pause = min(pause * 2, 5.0)
        return pause


def error_code(error: BaseException | None) -> str:
    """The code with which the storage answered, or an empty text; fsspec's file systems keep the answer as a cause."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return ""


def parts(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of exactly ``size``, the last one shorter; one empty piece where there are none."""
    buffer = bytearray()
    empty = True
    for chunk in chunks:
        buffer += chunk
        while len(buffer) > size:
            empty = False
            yield bytes(memoryview(buffer)[:size])
            del buffer[:size]
    if buffer or empty:
        yield bytes(buffer)


def _emptied(held: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    while held:
        yield held.pop(0)  # a part that has been sent takes no more memory
    yield from rest


def _path(uri: str) -> str:
    return uri.partition("://")[2]


def _some(file: Any, count: int) -> bytes:
    piece: bytes = file.read(count)
    if not piece:
        raise ConnectionResetError
    return piece


def _discard(file: Any) -> None:
    """Leave nothing of a file that was not committed. The error that led here is the one to report."""
    from fsspec.spec import AbstractBufferedFile

    if isinstance(file, AbstractBufferedFile):
        # Else it would send the rest of its buffer when it is collected as garbage, and begin anew for that.
        file.closed = True
    with contextlib.suppress(Exception):
        file.discard()
