"""A block of bytes becomes columns: tokenized by Arrow where its structure is proven, else record by record.

Whatever way a block takes, the number of its records and the bytes of its fields are known before from another way of
counting, and both must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv

from airflow_lake_provider.medallion.reading import bits
from airflow_lake_provider.medallion.reading.bits import Bytes, Positions
from airflow_lake_provider.medallion.reading.exact import ExactRecord
from airflow_lake_provider.medallion.reading.structure import Structure
from airflow_lake_provider.medallion.reading.syntax import ByteSyntax

ReadOne = Callable[[int], ExactRecord]

_LINE_ENDS: Final = b"\r\n"
# Ragged records are made even for the tokenizer, as long as that makes no more cells than this.
_MOST_CELLS: Final = 2 << 20
# A record with more surplus fields than this is read by itself: a column for each would cost more.
_MOST_SURPLUS: Final = 256
_SLOW_ROWS: Final = 65_536


class BlockDisagrees(Exception):
    """The tokenizer and the structure of a block differ; the block is then read record by record."""


@dataclass(slots=True)
class Noted:
    """How many records of a block something is true of, and the line of the first, counted from the block's first."""

    count: int = 0
    line: int = 0


@dataclass(slots=True)
class Piece:
    """Rows in their order: one array per column, and the surplus fields (None where no row has any)."""

    rows: int
    columns: list[pa.Array]
    rescued: pa.Array | None = None


@dataclass(slots=True)
class BlockRows:
    """All rows of a block. ``fields`` and ``field_bytes`` are those of all fields, surplus ones included."""

    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0
    fields: int = 0
    field_bytes: int = 0
    short: Noted = field(default_factory=Noted)
    long: Noted = field(default_factory=Noted)
    repaired: Noted = field(default_factory=Noted)


def exact_rows(records: Sequence[ExactRecord], raw: bytearray, width: int) -> BlockRows:
    """The rows of a block that was read, and accounted for, record by record."""
    found = BlockRows(
        rows=len(records),
        fields=sum(len(record.fields) for record in records),
        field_bytes=sum(_bytes_of(record.fields) for record in records),
    )
    widths = np.array([len(record.fields) for record in records], np.int64)
    _note(found, raw, width, widths, lambda row: records[row].start, records)
    for low in range(0, len(records), _SLOW_ROWS):
        rows = [record.fields for record in records[low : low + _SLOW_ROWS]]
        columns = [
            pa.array([row[index] if index < len(row) else None for row in rows], pa.string()) for index in range(width)
        ]
        rescued = None
        if any(len(row) > width for row in rows):
            rescued = pa.array([row[width:] or None for row in rows], pa.list_(pa.string()))
        found.pieces.append(Piece(len(rows), columns, rescued))
    return found


def tokenized_rows(
    raw: bytearray, syntax: ByteSyntax, width: int, structure: Structure, read_one: ReadOne
) -> BlockRows:
    """The rows of a block whose structure is known; ``read_one`` reads the record at a place by itself.

    Raises BlockDisagrees where the tokenizer sees something else than the structure says.
    """
    return _Tokenizer(raw, syntax, width, structure, read_one).rows()


class _Tokenizer:
    def __init__(self, raw: bytearray, syntax: ByteSyntax, width: int, structure: Structure, read_one: ReadOne) -> None:
        self.raw = raw
        self.data: Bytes = np.frombuffer(raw, np.uint8)
        self.width = width
        self.structure = structure
        self.read_one = read_one
        self.exact = list(structure.exact)
        self.delimiter, self.quote = _characters(raw, syntax, bool(self.exact))
        self.found = BlockRows()

    def rows(self) -> BlockRows:
        structure, found = self.structure, self.found
        found.rows = structure.records + len(self.exact)
        found.fields = structure.separators + structure.records + sum(len(record.fields) for record in self.exact)
        found.field_bytes = structure.field_bytes + sum(_bytes_of(record.fields) for record in self.exact)
        if not found.rows:
            return found
        if not self._even():
            self._uneven()
        if self.exact and not found.repaired.count:
            _note_repaired(found, self.raw, self.exact)
        rows = sum(piece.rows for piece in found.pieces)
        if rows != found.rows or self.bytes_seen != found.field_bytes:
            raise BlockDisagrees
        return found

    bytes_seen = 0

    def _even(self) -> bool:
        """Tokenize the block in one go, if every record has as many fields as there are columns."""
        structure, width = self.structure, self.width
        if structure.separators != (width - 1) * structure.records:
            return False
        if any(len(record.fields) != width for record in self.exact):
            return False
        text = self._spliced(0, structure.end, self.exact, _NO_ROWS, _NO_ROWS, width)
        try:
            columns = self._tokenize(text, width, self.found.rows)
        except pa.ArrowInvalid:
            # Too few fields here and too many there.
            return False
        self.found.pieces.append(Piece(self.found.rows, columns))
        return True

    def _uneven(self) -> None:
        ends, widths = self.structure.ends, self.structure.widths
        limit = self.width + max(_MOST_SURPLUS, self.width)
        wide = np.flatnonzero(widths > limit)
        if len(wide):
            cuts = np.concatenate(([0], ends + 1))
            extra = [self.read_one(int(cuts[index])) for index in wide]
            self.exact = sorted([*self.exact, *extra], key=lambda record: record.start)
            ends, widths = np.delete(ends, wide), np.delete(widths, wide)
            if self.quote is None:
                self.quote = _unused(self.raw, self.delimiter)
        starts = np.array([record.start for record in self.exact], np.int64)
        place = np.searchsorted(ends, starts)
        # Every record in its order: how many fields it has, and where the next may begin.
        row_widths = np.insert(widths, place, [len(record.fields) for record in self.exact])
        row_cuts = np.insert(ends + 1, place, [record.end for record in self.exact])
        exact_row = place + np.arange(len(place))
        _note(self.found, self.raw, self.width, row_widths, lambda row: self._row_start(row_cuts, row), self.exact)
        self._ends, self._widths = ends, widths
        self._range(row_widths, row_cuts, exact_row, 0, len(row_widths))

    def _row_start(self, row_cuts: Positions, row: int) -> int:
        start = int(row_cuts[row - 1]) if row else 0
        while self.raw[start] in _LINE_ENDS:
            start += 1
        return start

    def _range(self, row_widths: Positions, row_cuts: Positions, exact_row: Positions, low: int, high: int) -> None:
        """Tokenize the records ``low`` to ``high``, made even with empty fields that become null afterwards."""
        part = row_widths[low:high]
        first, last = (int(i) for i in np.searchsorted(exact_row, (low, high)))
        exact = self.exact[first:last]
        from_exact = exact_row[first:last] - low
        cells = part.copy()
        # Surplus fields of records that are read by themselves stay outside of the text.
        cells[from_exact] = np.minimum(cells[from_exact], self.width)
        across = int(cells.max())
        if across * len(part) > _MOST_CELLS and len(part) > 1 and int(cells.min()) * 2 < across:
            middle = (low + high) // 2
            self._range(row_widths, row_cuts, exact_row, low, middle)
            self._range(row_widths, row_cuts, exact_row, middle, high)
            return
        start = int(row_cuts[low - 1]) if low else 0
        stop = int(row_cuts[high - 1])
        here = slice(*np.searchsorted(self._ends, (start, stop)))
        text = self._spliced(start, stop, exact, self._ends[here], self._widths[here], across)
        try:
            columns = self._tokenize(text, across, len(part))
        except pa.ArrowInvalid as error:
            raise BlockDisagrees from error
        surplus = columns[self.width :]
        columns = (
            [
                _with_nulls(column, part > index) if (part <= index).any() else column
                for index, column in enumerate(columns[: self.width])
            ]
            if int(part.min()) < self.width
            else columns[: self.width]
        )
        if len(columns) < self.width:
            columns += [pa.nulls(len(part), pa.string())] * (self.width - len(columns))
        rescued = None
        if int(part.max()) > self.width:
            extra = [text for record in exact for text in record.fields[self.width :]]
            self.bytes_seen += _bytes_of(extra)
            rescued = _rescued(part, self.width, surplus, from_exact, extra)
        self.found.pieces.append(Piece(len(part), columns, rescued))

    def _spliced(
        self,
        start: int,
        stop: int,
        exact: list[ExactRecord],
        ends: Positions,
        widths: Positions,
        across: int,
    ) -> Any:
        """The bytes ``start`` to ``stop`` as the tokenizer shall see them: without the dialect's spaces, with ``exact``
        records written anew, and with the records that end at ``ends`` filled up to ``across`` fields."""
        lacking = across - widths
        dropped = self.structure.dropped
        if dropped is None and not exact and not lacking.any():
            return memoryview(self.raw)[start:stop]
        body = self.data[start:stop]
        removed = _NO_ROWS
        if dropped is not None or exact:
            remove = bits.flags_of(dropped, start, stop) if dropped is not None else np.zeros(stop - start, np.bool_)
            for record in exact:
                remove[record.start - start : record.end - start] = True
            body = body[~remove]
            if exact or lacking.any():
                removed = np.flatnonzero(remove)

        def moved(places: Positions) -> Positions:
            places = places - start
            return places - np.searchsorted(removed, places)

        cuts = moved(np.array([record.start for record in exact], np.int64))
        if lacking.any():
            filled = np.repeat(moved(ends), lacking)
            body = np.insert(body, filled, ord(self.delimiter or "\0"))
            cuts = cuts + np.searchsorted(filled, cuts)
        if not exact:
            return body
        view = body.data
        parts: list[Any] = []
        position = 0
        for cut, record in zip(cuts.tolist(), exact, strict=True):
            parts.append(view[position:cut])
            parts.append(self._written(record.fields, across))
            position = cut
        parts.append(view[position:])
        return b"".join(parts)

    def _written(self, fields: list[str], across: int) -> bytes:
        delimiter, quote = self.delimiter or "", self.quote or ""
        special = (delimiter, quote, "\r", "\n") if delimiter else (quote, "\r", "\n")
        written = [
            quote + text.replace(quote, quote + quote) + quote
            if quote and any(character in text for character in special)
            else text
            for text in fields[: min(self.width, across)]
        ]
        if across == 1 and not written[0]:
            written[0] = quote + quote  # an empty line would be no record
        return (delimiter.join(written) + delimiter * (across - len(written)) + "\n").encode()

    def _tokenize(self, text: Any, across: int, rows: int) -> list[pa.Array]:
        read, convert = _options(across)
        delimiter = self.delimiter or _unused(self.raw, self.quote)
        if delimiter is None:
            raise BlockDisagrees
        table = pa.csv.read_csv(
            pa.BufferReader(pa.py_buffer(text)),
            read_options=pa.csv.ReadOptions(column_names=read, use_threads=False, block_size=max(len(text) + 1, 1024)),
            parse_options=pa.csv.ParseOptions(
                delimiter=delimiter,
                quote_char=self.quote if self.quote is not None else False,
                double_quote=self.quote is not None,
                escape_char=False,
                newlines_in_values=self.quote is not None,
                ignore_empty_lines=True,
            ),
            convert_options=convert,
        )
        if table.num_rows != rows:
            raise BlockDisagrees
        columns = []
        for column in table.columns:
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            self.bytes_seen += _value_bytes(array)
            columns.append(array)
        return columns


_NO_ROWS: Final = np.zeros(0, np.int64)


@lru_cache(maxsize=8)
def _options(across: int) -> tuple[list[str], pa.csv.ConvertOptions]:
    names = [str(index) for index in range(across)]
    return names, pa.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        # Every byte was validated when the encoding was decided.
        check_utf8=False,
        strings_can_be_null=False,
        quoted_strings_can_be_null=False,
        auto_dict_encode=False,
    )


def _characters(raw: bytearray, syntax: ByteSyntax, written: bool) -> tuple[str | None, str | None]:
    """The delimiter and the quote for the tokenizer; records that are ``written`` anew need some quote."""
    delimiter = chr(syntax.delimiter) if syntax.delimiter is not None else None
    quote = chr(syntax.quote) if syntax.quote is not None else None
    if written and quote is None:
        quote = _unused(raw, delimiter)
    return delimiter, quote


def _unused(raw: bytearray, other: str | None) -> str | None:
    """A character that does not occur in the block and is not ``other``."""
    for byte in (*range(0x1F, 0x0D, -1), *range(0x01, 0x0A), *range(0x20, 0x7F)):
        if byte not in raw and chr(byte) != other:
            return chr(byte)
    return None


def _bytes_of(fields: list[str]) -> int:
    return len("".join(fields).encode())


def _value_bytes(array: pa.Array) -> int:
    if not len(array):
        return 0
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return int(offsets[array.offset + len(array)]) - int(offsets[array.offset])


def _with_nulls(array: pa.Array, valid: Any) -> pa.Array:
    if array.offset:
        array = pa.concat_arrays([array])
    _, offsets, values = array.buffers()
    validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(array), [validity, offsets, values])


def _rescued(
    widths: Positions, width: int, surplus: list[pa.Array], from_exact: Positions, extra: list[str]
) -> pa.Array:
    """The surplus fields of each row as a list: from the tokenized columns, or the next ones of ``extra``."""
    rows = len(widths)
    counts = np.maximum(widths - width, 0)
    ends = np.cumsum(counts)
    total = int(ends[-1])
    row = np.repeat(np.arange(rows), counts)
    index = np.arange(total) - np.repeat(ends - counts, counts)
    source = index * rows + row
    is_exact = np.zeros(rows, np.bool_)
    is_exact[from_exact] = True
    ours = is_exact[row]
    source[ours] = len(surplus) * rows + np.arange(int(np.count_nonzero(ours)))
    values = pa.concat_arrays([*surplus, pa.array(extra, pa.string())]).take(pa.array(source))
    offsets = np.zeros(rows + 1, np.int32)
    offsets[1:] = ends
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(counts == 0))


def lines_before(raw: bytearray, place: int) -> int:
    """How many physical lines end in front of a place."""
    return raw.count(b"\n", 0, place) + raw.count(b"\r", 0, place) - raw.count(b"\r\n", 0, place)


def _note(
    found: BlockRows,
    raw: bytearray,
    width: int,
    widths: Positions,
    start_of: Callable[[int], int],
    exact: Sequence[ExactRecord],
) -> None:
    for noted, rows in ((found.short, np.flatnonzero(widths < width)), (found.long, np.flatnonzero(widths > width))):
        if len(rows):
            noted.count = len(rows)
            noted.line = lines_before(raw, start_of(int(rows[0])))
    _note_repaired(found, raw, exact)


def _note_repaired(found: BlockRows, raw: bytearray, exact: Sequence[ExactRecord]) -> None:
    repaired = [record for record in exact if record.repaired]
    if repaired:
        found.repaired = Noted(len(repaired), lines_before(raw, repaired[0].start))
