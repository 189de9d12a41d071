"""The bytes of one file: plain or gzip, opened once, read at any offset."""

from __future__ import annotations

import io
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_lake_provider.errors import (
    DecompressionLimit,
    NoSpaceLeft,
    NotFound,
    SettingsError,
    StorageError,
    UnreadableFile,
)

GZIP_MAGIC = b"\x1f\x8b"
_Raw = io.FileIO | io.BytesIO

_CHUNK = 1 << 20
_IN_MEMORY = 8 << 20
# A small file may be all of one letter; the ratio says something only about large ones.
_RATIO_FROM = 64 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What keeps one file from filling the disk or the memory.

    ``max_bytes`` is how many bytes a compressed file may unpack to, ``max_ratio`` how many times its compressed size
    (held against files that unpack to more than 64 MiB only), ``max_record_bytes`` how long one record may be. Raises
    SettingsError for values that are not positive.
    """

    max_bytes: int = 100 << 30
    max_ratio: float = 200.0
    max_record_bytes: int = 512 << 20

    def __post_init__(self) -> None:
        for limit in ("max_bytes", "max_ratio", "max_record_bytes"):
            if not getattr(self, limit) > 0:
                raise SettingsError(
                    f"The limit {limit}={getattr(self, limit)} cannot be used: it must be greater than zero."
                )


class Source:
    """An open file whose uncompressed bytes can be read at any offset; a context manager.

    ``path`` is a local file. A file that begins with the gzip magic is unpacked, whatever it is called: into memory
    while small, else into an unnamed temporary file in ``temp_dir`` (the system's own by default), which is gone on
    close. Raises NotFound, StorageError or NoSpaceLeft where the file system refuses, UnreadableFile for a damaged
    or truncated gzip stream, and DecompressionLimit.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        limits: Limits | None = None,
        temp_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.path = Path(path)
        self.name = name if name is not None else self.path.name
        self.compressed = False
        self._file: _Raw = self._open()
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            if self._file.read(2) == GZIP_MAGIC:
                self.compressed = True
                packed = self._file
                self._file = self._unpack(packed, limits or Limits(), temp_dir)
                packed.close()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> _Raw:
        try:
            # Unbuffered: every read below is a large one.
            return self.path.open("rb", buffering=0)
        except FileNotFoundError:
            raise NotFound(f"{self.name} cannot be read: there is no such file.") from None
        except IsADirectoryError:
            raise NotFound(f"{self.name} cannot be read: it is a folder, and a file was expected.") from None
        except OSError as error:
            raise StorageError(f"{self.name} cannot be opened: {error.strerror or error}.") from error

    def _unpack(self, packed: _Raw, limits: Limits, temp_dir: str | os.PathLike[str] | None) -> _Raw:
        packed.seek(0)
        out: _Raw = io.BytesIO()
        size = 0
        try:
            for data in _gunzip(packed, self.name):
                if isinstance(out, io.BytesIO) and size + len(data) > _IN_MEMORY:
                    spilled = tempfile.TemporaryFile(dir=temp_dir, buffering=0)  # noqa: SIM115
                    in_memory, out = out, spilled
                    _write_all(out, in_memory.getbuffer())
                size += len(data)
                if size > limits.max_bytes:
                    raise DecompressionLimit(
                        f"{self.name} unpacks to more than {limits.max_bytes:,} bytes, which is the most that is "
                        "allowed: raise the limit max_bytes or split the file."
                    )
                if size > _RATIO_FROM and size > limits.max_ratio * self.size:
                    raise DecompressionLimit(
                        f"{self.name} unpacks to more than {limits.max_ratio:g} times its compressed size, which is "
                        "the most that is allowed: raise the limit max_ratio if the file can be trusted."
                    )
                _write_all(out, data)
        except OSError as error:
            out.close()
            if error.errno in NoSpaceLeft.ERRNOS:
                raise NoSpaceLeft(
                    f"{self.name} cannot be unpacked: there is no space left for its temporary copy after "
                    f"{size:,} bytes; free some space or set another temporary folder."
                ) from error
            raise StorageError(f"{self.name} cannot be unpacked: {error.strerror or error}.") from error
        except BaseException:
            out.close()
            raise
        self.size = size
        return out

    def read_into(self, target: memoryview, offset: int) -> int:
        """Fill ``target`` with the bytes from ``offset`` on; gives how many there were (fewer only at the end)."""
        got = 0
        try:
            self._file.seek(offset)
            while got < len(target):
                step = self._file.readinto(target[got:])
                if not step:
                    break
                got += step
        except OSError as error:
            raise StorageError(f"{self.name} cannot be read: {error.strerror or error}.") from error
        return got

    def read(self, offset: int, size: int) -> bytes:
        """The ``size`` bytes from ``offset`` on; fewer only at the end of the file."""
        size = max(0, min(size, self.size - offset))
        try:
            self._file.seek(offset)
            data = self._file.read(size) or b""
            while len(data) < size and (more := self._file.read(size - len(data))):
                data += more
        except OSError as error:
            raise StorageError(f"{self.name} cannot be read: {error.strerror or error}.") from error
        return data

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write_all(out: _Raw, data: bytes | memoryview) -> None:
    # An unbuffered file may take less than it is given.
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]


def _gunzip(packed: _Raw, name: str) -> Iterator[bytes]:
    """The unpacked bytes of every member of a gzip file, at most 1 MiB at a time."""
    stream = zlib.decompressobj(wbits=31)
    data = b""
    members = 0
    try:
        while True:
            part = stream.decompress(data, _CHUNK)
            if part:
                yield part
            data = stream.unconsumed_tail
            if not stream.eof:
                # What is still inside the decompressor comes out without new input.
                if not data and not part and not (data := packed.read(_CHUNK)):
                    raise UnreadableFile(
                        f"{name} is a gzip file that ends too early"
                        + (f", in its part {members + 1}" if members else "")
                        + ": it was cut short on its way; upload it again."
                    )
                continue
            members += 1
            # Zero bytes behind a member are padding; anything else must be another member.
            data = stream.unused_data.lstrip(b"\0")
            while not data:
                data = packed.read(_CHUNK)
                if not data:
                    return
                data = data.lstrip(b"\0")
            stream = zlib.decompressobj(wbits=31)
    except zlib.error as error:
        where = f" behind its part {members}" if members else ""
        raise UnreadableFile(
            f"{name} is a damaged gzip file{where} ({_reason(error)}): make it anew and upload it again."
        ) from error


def _reason(error: zlib.error) -> str:
    # "Error -3 while decompressing data: incorrect data check"
    return str(error).rpartition(": ")[2]
