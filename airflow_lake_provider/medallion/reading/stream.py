"""The text of a file as UTF-8 bytes, one block after the other."""

from __future__ import annotations

import codecs
from typing import Final

from airflow_lake_provider.medallion.reading.encoding import Encoding, undecodable
from airflow_lake_provider.medallion.reading.source import Source

_TRANSCODED: Final = 1 << 20


class TextStream:
    """Reads the text behind a byte order mark from its beginning; ``skip`` bytes of its UTF-8 form are left out.

    UTF-8 files are read as they are, since their bytes were validated; everything else is decoded and encoded anew.
    """

    def __init__(self, source: Source, encoding: Encoding, skip: int = 0) -> None:
        self._source = source
        self._encoding = encoding
        self._offset = encoding.mark
        self._direct = encoding.codec == "utf-8"
        self._decoder: codecs.IncrementalDecoder | None = None
        self._pending = b""
        if self._direct:
            self._offset += skip
            return
        self._decoder = codecs.getincrementaldecoder(encoding.codec)()
        self._ascii_as_is = _keeps_ascii(encoding.codec)
        while skip and (data := self._transcode()):
            self._pending = data[skip:]
            skip -= len(data) - len(self._pending)

    def block(self, carry: bytes | bytearray, size: int) -> tuple[bytearray, bool]:
        """``carry`` and about ``size`` bytes more, and whether the text ends with them.

        Raises UndecodableFile with the line of the first byte that cannot be decoded.
        """
        before = len(carry)
        if self._direct:
            size = max(0, min(size, self._source.size - self._offset))
            block = bytearray(before + size)
            view = memoryview(block)
            view[:before] = carry
            got = self._source.read_into(view[before:], self._offset)
            view.release()
            del block[before + got :]
            self._offset += got
            return block, got < size or self._offset >= self._source.size
        block = bytearray(carry)
        while len(block) < before + size:
            data = self._pending or self._transcode()
            if not data:
                return block, True
            room = before + size - len(block)
            block += data[:room]
            self._pending = data[room:]
        if not self._pending:
            self._pending = self._transcode()
        return block, not self._pending

    def _transcode(self) -> bytes:
        """The next bytes of text; none at the end."""
        decoder = self._decoder
        assert decoder is not None
        while True:
            start = self._offset
            waiting = decoder.getstate()[0]
            data = self._source.read(start, _TRANSCODED)
            self._offset += len(data)
            if data and self._ascii_as_is and not waiting and data.isascii():
                return data
            try:
                text = decoder.decode(data, not data)
            except UnicodeDecodeError as error:
                raise undecodable(
                    self._source, self._encoding.codec, start - len(waiting) + error.start, self._encoding.mark
                ) from None
            if text or not data:
                return text.encode()


def _keeps_ascii(codec: str) -> bool:
    """Whether bytes below 128 that begin a character are the ASCII characters."""
    ascii_bytes = bytes(range(128))
    try:
        return ascii_bytes.decode(codec) == ascii_bytes.decode("ascii")
    except UnicodeError:
        return False
