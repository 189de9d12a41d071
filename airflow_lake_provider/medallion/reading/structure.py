"""Where the records and fields of a block are, proven from its bytes, and counted without reading a field.

Outside quotes every delimiter separates two fields, and every run of line ends ends one record. Which places are
outside follows from the number of quotes in front of them, once each quote is known to open, close or double.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from airflow_lake_provider.medallion.reading import bits
from airflow_lake_provider.medallion.reading.bits import Bytes, Positions, Words
from airflow_lake_provider.medallion.reading.exact import ExactRecord
from airflow_lake_provider.medallion.reading.quoting import WINDOW, ReadSome, resolve_quoting
from airflow_lake_provider.medallion.reading.syntax import ByteSyntax

_LF: Final = 10
_CR: Final = 13
_SPACE: Final = 32


@dataclass(slots=True)
class _Quotes:
    """What quoting says, up to the byte ``proven``.

    ``inside`` are the bytes within quotes (an opening quote with them, a closing one not; None where there are no
    quotes), ``opening`` and ``closing`` the quotes that are syntax, ``spaces`` those around quotes, and ``exact`` the
    records that were read one by one.
    """

    proven: int
    inside: Words | None = None
    opening: Words | None = None
    closing: Words | None = None
    spaces: Words | None = None
    exact: list[ExactRecord] = field(default_factory=list)


@dataclass
class Structure:
    """The records of a block up to ``end``, where the next record begins (0 where none ends in the block).

    ``exact`` are the records that were read one by one; everything else here is about the others. ``delimiters`` and
    ``terminators`` are the bitmaps of the delimiters between fields and of the first line end behind each record.
    ``dropped`` is the bitmap of spaces that belong to the dialect (None where there are none). ``field_bytes`` is
    what remains when all syntax is taken away. ``lines`` counts the physical line ends up to ``end``.
    """

    end: int
    delimiters: Words
    terminators: Words
    dropped: Words | None
    exact: list[ExactRecord]
    records: int
    separators: int
    field_bytes: int
    lines: int

    @cached_property
    def ends(self) -> Positions:
        """The first line end behind each record."""
        return bits.positions_of(self.terminators)

    @cached_property
    def widths(self) -> Positions:
        """How many fields each record has."""
        return np.diff(bits.counts_before(self.delimiters, self.ends), prepend=0) + 1


def find_structure(
    raw: bytearray, syntax: ByteSyntax, read_some: ReadSome, *, final: bool, window: int = WINDOW
) -> Structure:
    """Find the records of a block that begins with a record (or with empty lines).

    ``read_some`` reads records one by one where the quoting is malformed or escaped. ``final`` says that the file ends
    with this block, whose last byte is a line end then. ``window`` is how many bytes are looked at together where
    quoting is not plain. Raises what ``read_some`` raises.
    """
    data = np.frombuffer(raw, np.uint8)
    size = len(data)
    newlines = bits.bits_of(data, _LF)
    returns = bits.bits_of(data, _CR) if b"\r" in raw else None
    line_ends = newlines if returns is None else newlines | returns
    delimiters = bits.bits_of(data, syntax.delimiter) if syntax.delimiter is not None else np.zeros_like(newlines)

    quotes = _plain_quotes(raw, data, syntax, line_ends, delimiters)
    end = 0
    if quotes is not None:
        end = bits.last_bit(_outside(line_ends, quotes), size) + 1
    if quotes is None or quotes.proven < end or (final and end < size):
        quotes = _resolved_quotes(data, syntax, read_some, final, window)
        end = quotes.proven

    lines = bits.count(bits.keep_before(line_ends, end))
    if returns is not None:
        lines -= bits.count(bits.keep_before(bits.after(returns, False) & newlines, end))
    return _structure(data, syntax, _outside(line_ends, quotes), _outside(delimiters, quotes), quotes, end, lines)


def _outside(words: Words, quotes: _Quotes) -> Words:
    return words if quotes.inside is None else words & ~quotes.inside


def _plain_quotes(
    raw: bytearray, data: Bytes, syntax: ByteSyntax, line_ends: Words, delimiters: Words
) -> _Quotes | None:
    """The quoting if every quote stands where one may stand; None if escape characters need a closer look."""
    if syntax.escape is not None and syntax.escape in raw:
        return None
    if syntax.quote is None or syntax.quote not in raw:
        return _Quotes(len(raw))
    quotes = bits.bits_of(data, syntax.quote)
    inside = bits.parity(quotes)
    opening, closing = quotes & inside, quotes & ~inside
    # In front of an opening quote a field begins, behind a closing one it ends; else the two are a doubled quote.
    ends_field = line_ends | delimiters
    wrong = opening & ~bits.after(ends_field | closing, True)
    spaces = None
    if syntax.pad and wrong.any():
        # One space between a delimiter and an opening quote is common enough to be looked for right here.
        spaces = bits.bits_of(data, _SPACE) & bits.after(delimiters, False) & bits.ahead(opening)
        wrong &= ~bits.after(spaces, False)
    wrong |= closing & ~bits.ahead(ends_field | opening)
    first = bits.first_bit(wrong)
    return _Quotes(first if first >= 0 else len(raw), inside, opening, closing, spaces)


def _resolved_quotes(data: Bytes, syntax: ByteSyntax, read_some: ReadSome, final: bool, window: int) -> _Quotes:
    found = resolve_quoting(data, syntax, read_some, final=final, window=window)
    opening = bits.bits_at(found.quotes[0::2], len(data))
    closing = bits.bits_at(found.quotes[1::2], len(data))
    spaces = bits.bits_at(found.spaces, len(data)) if len(found.spaces) else None
    return _Quotes(found.end, bits.parity(opening | closing), opening, closing, spaces, found.exact)


def _structure(
    data: Bytes, syntax: ByteSyntax, line_ends: Words, delimiters: Words, quotes: _Quotes, end: int, lines: int
) -> Structure:
    line_ends, delimiters = bits.keep_before(line_ends, end), bits.keep_before(delimiters, end)
    remaining = end
    runs = line_ends
    if quotes.exact:
        flags = np.zeros(len(data), np.bool_)
        for record in quotes.exact:
            flags[record.start : record.end] = True
            remaining -= record.end - record.start
        read = bits.pack(flags)
        line_ends, delimiters = line_ends & ~read, delimiters & ~read
        # A record read one by one is no more than a run of line ends to those around it.
        runs = line_ends | read
    terminators = runs & ~bits.after(runs, True)

    dropped = quotes.spaces
    if syntax.skip_space:
        skipped = bits.after(delimiters, False) & bits.bits_of(data, _SPACE)
        dropped = skipped if dropped is None else skipped | dropped
    separators = bits.count(delimiters)
    field_bytes = remaining - separators - bits.count(line_ends)
    if dropped is not None:
        dropped = bits.keep_before(dropped, end)
        field_bytes -= bits.count(dropped)
    if quotes.opening is not None and quotes.closing is not None:
        opening = bits.keep_before(quotes.opening, end)
        closing = bits.keep_before(quotes.closing, end)
        field_bytes -= bits.count(opening) + bits.count(closing) - bits.count(closing & bits.ahead(opening))
    return Structure(
        end=end,
        delimiters=delimiters,
        terminators=terminators,
        dropped=dropped,
        exact=quotes.exact,
        records=bits.count(terminators),
        separators=separators,
        field_bytes=field_bytes,
        lines=lines,
    )


def spaces_follow(raw: bytearray, structure: Structure) -> bool:
    """Whether behind every delimiter of a block there is a space or a line end."""
    data = np.frombuffer(raw, np.uint8)
    expected = bits.bits_of(data, _SPACE) | bits.bits_of(data, _LF) | bits.bits_of(data, _CR)
    return not (structure.delimiters & ~bits.ahead(expected)).any()
