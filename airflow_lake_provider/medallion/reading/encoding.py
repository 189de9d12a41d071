"""Which encoding the bytes of a file are in: one cheap pass over all of them decides."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_lake_provider.errors import SettingsError, UndecodableFile, UnsupportedFile
from airflow_lake_provider.medallion.dialect import Doubt
from airflow_lake_provider.medallion.reading.legacy import EVIDENCE_BYTES, guess_legacy
from airflow_lake_provider.medallion.reading.source import Source

_CHUNK: Final = 4 << 20
_HEAD: Final = 64 << 10
# Small enough for the processor's cache.
_COUNTED: Final = 256 << 10

# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# What an explicit codec without a byte order leaves to the file.
_OPEN_ORDER: Final = {"utf-16": ("utf-16-le", "utf-16-be"), "utf-32": ("utf-32-le", "utf-32-be")}


@dataclass(frozen=True, slots=True)
class Encoding:
    """The decision: ``codec`` is a Python codec name that has a fixed byte order, ``mark`` the length of the byte
    order mark in bytes (0 where there is none), ``doubts`` what speaks for another decision."""

    codec: str
    mark: int = 0
    doubts: tuple[Doubt, ...] = ()


def decide_encoding(source: Source, wanted: str | None = None) -> Encoding:
    """Decide the encoding of an open file; ``wanted`` is the one that a user has set.

    A byte order mark decides; then zeros in a pattern that only UTF-16 and UTF-32 make; then UTF-8, if every byte of
    the file is valid; else a legacy encoding that decodes every byte, which is a doubt. Raises UndecodableFile with the
    line where a file is UTF-8 but for a few bytes, or where nothing decodes it; SettingsError for an unknown
    ``wanted``; UnsupportedFile for a file without bytes.
    """
    head = source.read(0, _HEAD)
    if not head:
        raise UnsupportedFile(f"{source.name} is empty: a delimited text file was expected.")
    marked = _marked(head, source.size)
    if wanted:
        return _explicit(source, head, marked, codec_name(wanted))
    if marked is not None and marked.codec != "utf-8":
        return marked
    if marked is None and (codec := _by_zeros(head, source.size)) is not None:
        return Encoding(codec, 0, (_unmarked(codec),))
    mark = marked.mark if marked is not None else 0
    check = _check_utf8(source, mark)
    if check.first_bad is None:
        return Encoding("utf-8", mark)
    if mark or check.sequences >= 10 + 4 * check.bad:
        line = line_at(source, "utf-8", check.first_bad)
        raise UndecodableFile(
            f"{source.name} is UTF-8 but for {check.bad:,} byte{'s' if check.bad != 1 else ''}, the first of them in "
            f"line {line}: mend the file, or set its encoding (for example cp1252) to read it as something else.",
            line=line,
        )
    return _legacy(source, check)


def codec_name(wanted: str) -> str:
    """The canonical name of a text encoding; raises SettingsError for anything else."""
    try:
        info = codecs.lookup(wanted.strip())
    except (LookupError, ValueError):
        info = None
    if info is None or not getattr(info, "_is_text_encoding", True) or info.name in ("idna", "punycode", "undefined"):
        raise SettingsError(
            f"The encoding {wanted!r} is not known: use a name such as utf-8, utf-16, cp1252 or iso-8859-15."
        )
    return "utf-8" if info.name == "utf-8-sig" else info.name


def line_at(source: Source, codec: str, offset: int, start: int = 0) -> int:
    """The 1-based physical line of the byte at ``offset``, in text that begins at the byte ``start``."""
    decoder = codecs.getincrementaldecoder(codec)(errors="replace")
    lines, after_cr = 1, False
    for data in _chunks(source, start, offset):
        text = decoder.decode(data)
        if not text:
            continue
        lines += text.count("\n") + text.count("\r") - text.count("\r\n") - (after_cr and text[0] == "\n")
        after_cr = text[-1] == "\r"
    return lines


def _chunks(source: Source, start: int, end: int | None = None, size: int = _CHUNK) -> Iterator[bytes]:
    end = source.size if end is None else end
    while start < end:
        data = source.read(start, min(size, end - start))
        if not data:
            return
        yield data
        start += len(data)


def _marked(head: bytes, size: int) -> Encoding | None:
    for mark, codec in _MARKS:
        if head.startswith(mark):
            if codec == "utf-32-le" and (size % 4 or not _decodes(head[4:], codec)):
                continue  # UTF-16 whose first character is a NUL
            return Encoding(codec, len(mark))
    return None


def _decodes(head: bytes, codec: str) -> bool:
    try:
        codecs.getincrementaldecoder(codec)().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _by_zeros(head: bytes, size: int) -> str | None:
    """UTF-16 or UTF-32 without a mark.

    Characters below U+0100 (delimiters and line ends at least) have zeros in the same places of every unit, and other
    text has none there. A NUL here and there in a UTF-8 file is an ordinary character.
    """
    if b"\0" not in head:
        return None
    data = np.frombuffer(head, np.uint8)
    if size % 4 == 0 and len(data) >= 4:
        units = data[: len(data) // 4 * 4].reshape(-1, 4)
        if not units[:, 3].any() and (units[:, 2] <= 0x10).all() and _decodes(head, "utf-32-le"):
            return "utf-32-le"
        if not units[:, 0].any() and (units[:, 1] <= 0x10).all() and _decodes(head, "utf-32-be"):
            return "utf-32-be"
    if size % 2 == 0:
        pairs = data[: len(data) // 2 * 2].reshape(-1, 2)
        first, second = (float(share) for share in np.count_nonzero(pairs == 0, axis=0) / len(pairs))
        for codec, zeros, others in (("utf-16-le", second, first), ("utf-16-be", first, second)):
            # Where few characters are below U+0100, the others are no UTF-8 either.
            enough = zeros >= 0.3 or (zeros >= 0.05 and not _decodes(head, "utf-8"))
            if enough and others <= 0.01 and _decodes(head, codec):
                return codec
    return None


def _unmarked(codec: str) -> Doubt:
    return Doubt(
        "encoding_guessed",
        f"The file is read as {codec}, because of the pattern of its zero bytes; it has no byte order mark.",
        setting="encoding",
    )


def _explicit(source: Source, head: bytes, marked: Encoding | None, codec: str) -> Encoding:
    if codec in _OPEN_ORDER:
        little, big = _OPEN_ORDER[codec]
        if marked is not None and marked.codec in (little, big):
            return marked
        guessed = _by_zeros(head, source.size)
        return Encoding(guessed if guessed in (little, big) else little)
    if marked is not None and marked.codec == codec:
        encoding = marked
    elif marked is not None and marked.mark >= 3:
        encoding = Encoding(
            codec,
            0,
            (
                Doubt(
                    "encoding_mark_ignored",
                    f"The file begins with the byte order mark of {marked.codec} but is read as {codec}, as it is set.",
                    setting="encoding",
                    line=1,
                ),
            ),
        )
    else:
        encoding = Encoding(codec)
    if codec == "utf-8" and (bad := _check_utf8(source, encoding.mark, count=False).first_bad) is not None:
        raise undecodable(source, "utf-8", bad, encoding.mark)
    return encoding


def undecodable(source: Source, codec: str, offset: int, start: int) -> UndecodableFile:
    """The error for a byte at ``offset`` that ``codec`` does not decode."""
    line = line_at(source, codec, offset, start)
    return UndecodableFile(
        f"{source.name} cannot be decoded as {codec}: the first byte that does not fit is in line {line}; mend the "
        "file or set another encoding.",
        line=line,
    )


@dataclass(frozen=True, slots=True)
class _Utf8Check:
    """``first_bad`` is the offset of the first byte that is not UTF-8; the other counts are complete only if there is
    one: well-formed multi-byte ``sequences``, ``bad`` bytes outside of them, and ``lines`` with bytes beyond ASCII."""

    first_bad: int | None = None
    sequences: int = 0
    bad: int = 0
    lines: bytes = b""


def _check_utf8(source: Source, start: int, *, count: bool = True) -> _Utf8Check:
    carry = b""
    offset = start
    for data in _chunks(source, start):
        if carry:
            data = carry + data
        carry = b""
        if not data.isascii():
            cut = _character_cut(data)
            data, carry = data[:cut], data[cut:]
            if not _is_utf8(data):
                bad = offset + _first_bad(data)
                return _count_utf8(source, start, bad) if count else _Utf8Check(bad)
        offset += len(data)
    if carry:
        return _count_utf8(source, start, offset) if count else _Utf8Check(offset)
    return _Utf8Check()


def _character_cut(data: bytes) -> int:
    """Where a character begins that may go on in the next chunk: within the last three bytes, or the end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if needed > back else len(data)
    return len(data)


def _is_utf8(data: bytes) -> bool:
    """Arrow's validation, which is several times faster than decoding, and makes no text."""
    offsets = pa.py_buffer(np.array([0, len(data)], np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _first_bad(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _count_utf8(source: Source, start: int, first_bad: int) -> _Utf8Check:
    """Count what speaks for UTF-8 and what against it; at the edges of a chunk a sequence may count as bad bytes."""
    sequences = bad = 0
    lines: list[bytes] = []
    wanted = EVIDENCE_BYTES
    for data in _chunks(source, start, size=_COUNTED):
        if data.isascii():
            continue
        if wanted > 0:
            for line in data.splitlines():
                if not line.isascii():
                    lines.append(line[:wanted])
                    wanted -= len(line)
                    if wanted <= 0:
                        break
        a = np.frombuffer(data + b"\0\0\0", np.uint8)
        tail = (a & 0xC0) == 0x80
        lead = a[:-3]
        two = (lead >= 0xC2) & (lead <= 0xDF) & tail[1:-2]
        three = ((lead & 0xF0) == 0xE0) & tail[1:-2] & tail[2:-1]
        four = (lead >= 0xF0) & (lead <= 0xF4) & tail[1:-2] & tail[2:-1] & tail[3:]
        counts = [int(np.count_nonzero(mask)) for mask in (two, three, four)]
        sequences += sum(counts)
        bad += int(np.count_nonzero(lead >= 0x80)) - sum((i + 2) * c for i, c in enumerate(counts))
    return _Utf8Check(first_bad, sequences, max(bad, 1), b"\n".join(lines))


def _legacy(source: Source, check: _Utf8Check) -> Encoding:
    for guess in guess_legacy(check.lines):
        if _decodes_all(source, guess.codec):
            return Encoding(
                guess.codec,
                0,
                (
                    Doubt(
                        "encoding_guessed",
                        f"The file is not UTF-8 and is read as {guess.codec}, {guess.why}.",
                        setting="encoding",
                        line=line_at(source, guess.codec, check.first_bad or 0),
                    ),
                ),
            )
    line = line_at(source, "latin-1", check.first_bad or 0)
    raise UndecodableFile(
        f"{source.name} is not UTF-8 (line {line} is the first that shows it) and no other encoding fits every byte: "
        "set its encoding.",
        line=line,
    )


def _decodes_all(source: Source, codec: str) -> bool:
    decoder = codecs.getincrementaldecoder(codec)()
    try:
        for data in _chunks(source, 0):
            if not decoder.getstate()[0] and data.isascii():
                continue
            decoder.decode(data)
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True
