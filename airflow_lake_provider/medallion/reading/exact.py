"""Records read one by one, with an account of every character that is not part of a field."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from airflow_lake_provider.errors import RecordsDisagree, UnclosedQuote
from airflow_lake_provider.medallion.dialect import Dialect
from airflow_lake_provider.medallion.reading.records import Record, read_records

LOOKAHEAD: Final = 256 << 10
"""How many characters a record with malformed quoting may look at to be read in the best way."""

_LINE_ENDS: Final = re.compile(r"\r\n|\r|\n")


class ExactRecord(NamedTuple):
    """A record and the bytes ``start`` to ``end`` of the block that it stands in, line end included."""

    fields: list[str]
    start: int
    end: int
    repaired: bool


@dataclass(frozen=True, slots=True)
class Exact:
    """Reads stretches of blocks by the definition of a record; ``name`` is the file's, for errors."""

    name: str
    dialect: Dialect
    width: int
    lookahead: int = LOOKAHEAD

    def few(
        self,
        data: memoryview,
        start: int,
        end: int,
        limit: int,
        *,
        final: bool,
        first_line: int,
        window: int = 8 << 10,
    ) -> list[ExactRecord]:
        """Up to ``limit`` records from the byte ``start`` on, where a record begins.

        ``data`` up to ``end`` is the text that is there; ``final`` says that the file ends with it. Gives fewer if the
        text ends first, none if more of it is needed, and more where many were read at once. ``window`` is how many
        bytes to decode at first. Raises UnclosedQuote and RecordsDisagree.
        """
        size = min(window, self.lookahead)
        while True:
            stop = min(start + size, end)
            last = final and stop == end
            # Without its last character where that is cut.
            text, _ = codecs.utf_8_decode(data[start:stop], "strict", last)
            records = []
            for record in read_records(text, self.dialect, width=self.width, final=last, first_line=first_line):
                records.append(record)
                if len(records) == limit:
                    break
            if records or last:
                return self._accounted(text, records, start, first_line, at_end=last and len(records) < limit)
            if stop == end:
                return []
            if size == self.lookahead:
                return self._far(data, start, end, final=final, first_line=first_line)
            size = min(size * 8, self.lookahead)

    def _far(self, data: memoryview, start: int, end: int, *, final: bool, first_line: int) -> list[ExactRecord]:
        """The records from ``start`` on, the first of which is very long, or so malformed that far text could decide.

        A record is read as if the text ended ``lookahead`` characters behind its beginning; if that is too early for
        it, 8 times as many, and so on. So it is read the same wherever blocks end, and other records do not wait for
        the end of the file.
        """
        horizon = self.lookahead
        while True:
            stop = min(start + 8 * horizon, end)
            last = final and stop == end
            text, _ = codecs.utf_8_decode(data[start:stop], "strict", last)
            if len(text) < horizon + self._margin and not last:
                return []
            if last and len(text) <= horizon:
                records = list(read_records(text, self.dialect, width=self.width, first_line=first_line))
                return self._accounted(text, records, start, first_line, at_end=True)
            records = self._within(text, horizon, first_line, last)
            if records:
                return self._accounted(text, records, start, first_line, at_end=False)
            horizon *= 8

    def _within(self, text: str, horizon: int, first_line: int, last: bool) -> list[Record]:
        """The first record, if it ends within the horizon, and with it those behind it that have a horizon too.

        One pass over a long text finds many: a pass for each would search the same text again and again.
        """
        records: list[Record] = []
        try:
            for record in read_records(text, self.dialect, width=self.width, first_line=first_line):
                if len(text) - record.start < horizon + self._margin and not last:
                    break
                if record.end == len(text) or (record.repaired and not self._is_read_so(record, text, horizon)):
                    break
                records.append(record)
                if horizon > self.lookahead:
                    break
        except UnclosedQuote:
            pass
        if not records and (first := self._first(text, 0, horizon)) is not None and first.end < horizon:
            records = [first]
        return records

    def _is_read_so(self, record: Record, text: str, horizon: int) -> bool:
        """Whether a malformed record is read in the same way as if the text ended at its horizon."""
        if len(text) - record.start <= horizon:
            return record.end - record.start < horizon
        first = self._first(text, record.start, horizon)
        end = record.end - record.start
        return first is not None and (first.fields, first.end) == (record.fields, end) and end < horizon

    @property
    def _margin(self) -> int:
        return max(len(self.dialect.delimiter or "") - 1, 0)

    def _first(self, text: str, start: int, horizon: int) -> Record | None:
        """The record that begins at ``start``, as if the text ended at its horizon, or behind a delimiter there."""
        end = start + horizon
        delimiter = self.dialect.delimiter or ""
        for cut in range(1, len(delimiter)):
            if text.startswith(delimiter, end - cut):
                # Half of it behind a quote would make a well-formed record look malformed.
                end += len(delimiter) - cut
                break
        try:
            return next(read_records(text[start:end], self.dialect, width=self.width), None)
        except UnclosedQuote:
            return None

    def _accounted(
        self, text: str, records: list[Record], start: int, first_line: int, *, at_end: bool
    ) -> list[ExactRecord]:
        end = len(text) if at_end else records[-1].end if records else 0
        account(self.name, text, records, end, self.dialect, first_line)
        found = []
        if text.isascii():
            return [ExactRecord(r.fields, start + r.start, start + r.end, r.repaired) for r in records]
        position, byte = 0, start
        for record in records:
            first = byte + len(text[position : record.start].encode())
            byte = first + len(text[record.start : record.end].encode())
            position = record.end
            found.append(ExactRecord(record.fields, first, byte, record.repaired))
        return found


def account(name: str, text: str, records: Sequence[Record], end: int, dialect: Dialect, first_line: int = 1) -> int:
    """Hold the records of ``text`` up to ``end`` against its characters; gives the UTF-8 bytes of their fields.

    Nothing but empty lines may lie between records, every character without a meaning in the dialect must be in a
    field, in its order, and of the delimiters and line ends exactly those may be missing that separate fields and
    records. Raises RecordsDisagree with the line where that is not so.
    """
    position = 0
    separators = line_ends = 0
    for record in records:
        if record.start < position or record.end <= record.start:
            raise _disagree(name, text, min(record.start, position), first_line)
        if record.start > position:
            line_ends += _only_line_ends(name, text, position, record.start, first_line)
        separators += len(record.fields) - 1
        if text[record.end - 1] in "\r\n":
            line_ends += 2 if text[record.end - 2 : record.end] == "\r\n" and record.end - 2 >= record.start else 1
        position = record.end
    if end > position:
        line_ends += _only_line_ends(name, text, position, end, first_line)

    raw = text[:end].encode()
    kept = "".join(["".join(record.fields) for record in records]).encode()
    delimiter, quote, escape = dialect.delimiter or "", dialect.quote or "", dialect.escape or ""
    special = set(delimiter + quote + escape + " \r\n")
    if _without(raw, special) != _without(kept, special):
        raise _disagree(name, text, 0, first_line)
    blank = quote not in text[:end] if quote else True
    blank = blank and not dialect.skip_initial_space and not (escape and escape in text[:end])
    for character in special:
        missing = raw.count(character.encode()) - kept.count(character.encode())
        between = separators * delimiter.count(character)
        if character in "\r\n":
            continue
        exact = character in delimiter and character not in quote + escape + " "
        if missing < between or (missing > between and (exact or (blank and character == " "))):
            raise _disagree(name, text, 0, first_line)
    missing = sum(raw.count(c) - kept.count(c) for c in (b"\r", b"\n"))
    if missing != line_ends:
        raise _disagree(name, text, 0, first_line)
    return len(kept)


def _only_line_ends(name: str, text: str, start: int, end: int, first_line: int) -> int:
    if text[start:end].strip("\r\n"):
        raise _disagree(name, text, start, first_line)
    return end - start


def _without(data: bytes, special: set[str]) -> bytes:
    data = data.translate(None, "".join(c for c in special if c.isascii()).encode())
    for character in special:
        if not character.isascii():
            data = data.replace(character.encode(), b"")
    return data


def _disagree(name: str, text: str, position: int, first_line: int) -> RecordsDisagree:
    line = first_line + sum(1 for _ in _LINE_ENDS.finditer(text, 0, position))
    return RecordsDisagree(
        f"{name} cannot be taken in: from line {line} on, two ways of counting its records and characters differ; "
        "nothing was changed. Please report this with the dialect that the file was read with.",
        line=line,
    )
