"""What a record is: decoded text and a dialect become records of exact field texts.

Well-formed text has one reading. Where text follows a closing quote the quoting is malformed, and a reading has to
be chosen; the choice looks at nothing but the record itself and the number of fields that was expected, so that one
bad record never changes how the others are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from airflow_lake_provider.errors import UnclosedQuote
from airflow_lake_provider.medallion.dialect import Dialect

_LINE_END: Final = r"\r\n|\r|\n"
_LINE_END_PATTERN: Final = re.compile(_LINE_END)
_LINE_PATTERN: Final = re.compile(r"[^\r\n]*")
_NEVER: Final = r"(?!)"
_LONGEST_LINE: Final = 65_536  # in characters; matching a line as a whole keeps state for each of its fields


class Record(NamedTuple):
    """One record: its exact field texts and where it stands in the text.

    ``start`` is the offset of its first character, ``end`` the offset just past its line end. ``repaired`` says
    that its quoting was malformed, so that a reading had to be chosen.
    """

    fields: list[str]
    start: int
    end: int
    repaired: bool


def read_records(
    text: str, dialect: Dialect, *, width: int | None = None, final: bool = True, first_line: int = 1
) -> Iterator[Record]:
    r"""Yield the records of ``text``, which is decoded and holds no byte order mark.

    ``width`` is the number of fields of the header record, if it is known; it only serves to choose a reading where
    quoting is malformed. ``final=False`` means that more text follows: the iteration then stops before the first
    record whose end is not certain yet, and the caller comes back with the text from the last ``end`` on and more.
    ``first_line`` is the physical line number of the first character.

    - ``\n``, ``\r\n`` and ``\r`` outside quotes end a record, in any mixture. The last record needs no line end. An
      empty line is no record; ``""`` is a record of one empty field, and a line of spaces is a record too.
    - A field is quoted if its first character after spaces is the quote (no spaces where the delimiter is a space).
      Inside, a doubled quote is one quote. Spaces around the quotes belong to the dialect.
    - Any other field is kept verbatim with the whitespace around it; a quote within it is an ordinary character.
    - With an escape character, it is dropped before a quote, a delimiter and another escape character, and inside
      quotes before a line end; those lose their meaning. Everywhere else it is kept. A line end outside quotes ends
      the record even when an escape character stands before it.

    Text between a closing quote and the next delimiter or line end is malformed. The record is then read in these
    ways: *verbatim* (the field ends at the next delimiter or line end after that quote and keeps its quotes),
    *literal opening* (its opening quote is an ordinary character), *lenient closing* (a quote closes only where a
    delimiter or a line end follows; first only in the malformed field and only if the quote is not itself doubled,
    then in every quoted field). Of those that give ``width`` fields, the one that ends first is taken, in case of a
    tie the first in this order; where none does, the verbatim one.

    Raises UnclosedQuote, naming the line of the opening quote, if a quoted field is still open at the end of the
    text and ``final`` is set.
    """
    return _Reader(text, dialect, width, final, first_line).records()


@dataclass(frozen=True, slots=True)
class _Syntax:
    """The compiled patterns of one dialect.

    ``separator`` finds what ends an unquoted field: group 1 a delimiter, group 2 a line end, neither an escape
    sequence. ``plain`` does so faster, together with the text before it, where the delimiter is one character and
    nothing is escaped. ``after_quote`` matches what may follow a closing quote. In the last two, group 2 is empty at
    the end of the text. ``line`` matches a well-formed line whose quoted fields all close in it, and ``field`` its
    fields (group 1 within quotes, group 2 without).
    """

    delimiter: str | None
    quote: str | None
    escape: str | None
    skip_space: bool
    pad: str
    opening: re.Pattern[str]
    separator: re.Pattern[str]
    plain: re.Pattern[str] | None
    line: re.Pattern[str]
    field: re.Pattern[str]
    after_quote: re.Pattern[str]
    quote_run: re.Pattern[str]
    odd_run: re.Pattern[str]
    lenient_odd: re.Pattern[str]
    lenient_any: re.Pattern[str]
    unescape_quoted: re.Pattern[str]
    unescape_plain: re.Pattern[str]


@lru_cache(maxsize=256)
def _syntax(delimiter: str | None, quote: str | None, escape: str | None, skip_space: bool) -> _Syntax:
    d = re.escape(delimiter) if delimiter else _NEVER
    q = re.escape(quote) if quote else _NEVER
    e = re.escape(escape) if escape else _NEVER
    # Where spaces are the delimiter, none of them can belong to the quotes.
    pad = "" if delimiter is not None and not delimiter.strip(" ") else " *"
    separated = f"{d}{' ?' if skip_space else ''}"
    ends = f"({separated})|({_LINE_END}"
    special = f"{q}|{e}|{d}"
    inside = f"[^{q}]*(?:{q}{q}[^{q}]*)*" if quote else _NEVER
    outside = f"(?!{pad}{q})" + (f"[^{d}\\r\\n]*" if delimiter and len(delimiter) == 1 else f"(?:(?!{d})[^\\r\\n])*")
    any_field = f"(?:{pad}{q}{inside}{q}{pad}|{outside})"
    closes = f"(?={pad}(?:{d}|[\\r\\n]|\\Z))"
    return _Syntax(
        delimiter=delimiter,
        quote=quote,
        escape=escape,
        skip_space=skip_space,
        pad=pad,
        opening=re.compile(f"{pad}{q}"),
        separator=re.compile(f"{e}(?:{special})|{ends})" if escape else f"{ends})"),
        plain=re.compile(f"[^{d}\\r\\n]*(?:{ends}|\\Z))") if delimiter and len(delimiter) == 1 and not escape else None,
        line=re.compile(f"(?:{any_field}{separated})*{any_field}"),
        field=re.compile(f"(?:\\A|{separated})(?:{pad}{q}({inside}){q}{pad}(?={separated}|\\Z)|({outside}))"),
        after_quote=re.compile(f"{pad}(?:{ends}|\\Z))"),
        quote_run=re.compile(f"{e}(?:{e}|{q})|({q}+)" if escape else f"({q}+)"),
        odd_run=re.compile(f"(?<!{q}){q}(?:{q}{q})*(?!{q})" if quote else _NEVER),
        lenient_odd=re.compile(f"(?<!{q}){q}(?:{q}{q})*(?!{q}){closes}" if quote else _NEVER),
        lenient_any=re.compile(f"{q}{closes}"),
        unescape_quoted=re.compile(f"{e}({special}|{_LINE_END})|{q}({q})"),
        unescape_plain=re.compile(f"{e}({special})"),
    )


def _syntax_of(dialect: Dialect) -> _Syntax:
    quote = dialect.quote or None
    escape = dialect.escape or None
    if escape == quote:
        escape = None  # a quote that escapes a quote is a doubled quote
    return _syntax(dialect.delimiter or None, quote, escape, dialect.skip_initial_space)


# How a malformed field is read.
_VERBATIM: Final = 0
_LITERAL: Final = 1
_LENIENT: Final = 2
_LENIENT_EVERYWHERE: Final = 3

# What the characters of a field mean.
_PLAIN: Final = 0
_QUOTED: Final = 1
_RAW: Final = 2

_Span = tuple[int, int, int]  # kind, start, end
_Outcome = Literal["done", "unclosed", "more", "wide", "malformed"]


class _Scan(NamedTuple):
    """A record as one way of reading sees it; ``end`` is the place of the opening quote where it is unclosed."""

    outcome: _Outcome
    spans: list[_Span]
    end: int


class _Reader:
    def __init__(self, text: str, dialect: Dialect, width: int | None, final: bool, first_line: int) -> None:
        self.text = text
        self.size = len(text)
        self.syntax = _syntax_of(dialect)
        self.width = width
        self.final = final
        self.first_line = first_line
        # By way of reading: from which opening quote a lenient closing one was looked for last, where the run of
        # quotes begins that was found, and its last quote. Many malformed records in a row must not search the same
        # far text again and again.
        self.lenient_found: dict[int, tuple[int, int, int]] = {}

    def records(self) -> Iterator[Record]:
        text, size, syntax = self.text, self.size, self.syntax
        delimiter, skip_space, escape = syntax.delimiter, syntax.skip_space, syntax.escape
        quote = syntax.quote or ""
        doubled = quote + quote
        only_newlines = "\r" not in text
        line_match = _LINE_PATTERN.match
        whole_line, find_fields = syntax.line.fullmatch, syntax.field.findall
        position = 0
        # The next quote or escape character: whole lines before it are split without a closer look.
        special = -1
        while position < size:
            if only_newlines:
                end = text.find("\n", position)
                if end < 0:
                    end = size
            else:
                match = line_match(text, position)
                assert match is not None
                end = match.end()
            if end == position:
                position += 1
                continue
            if special < position:
                special = self._next_special(position)
            # The whole line at once, where it is certain that the record ends with it.
            if end < size:
                after = end + 1
                if text[end] == "\r" and text[after : after + 1] == "\n":
                    after += 1
            else:
                after = size
            certain = self.final or (after > end and (after < size or text[after - 1] == "\n"))
            if end <= special:
                if not certain:
                    return
                line = text[position:end]
                fields = line.split(delimiter) if delimiter else [line]
                if skip_space:
                    fields[1:] = [field[1:] if field[:1] == " " else field for field in fields[1:]]
                yield Record(fields, position, after, False)
                position = after
                continue
            if certain and end - position <= _LONGEST_LINE and (not escape or text.find(escape, position, end) < 0):
                line = text[position:end]
                if whole_line(line) is not None:
                    fields = [
                        (quoted.replace(doubled, quote) if quote in quoted else quoted) or plain
                        for quoted, plain in find_fields(line)
                    ]
                    yield Record(fields, position, after, False)
                    position = after
                    continue
            scan = self._scan(position, _VERBATIM, None, stop_if_malformed=True)
            repaired = scan.outcome == "malformed"
            if repaired:
                scan = self._choose(position)
            if scan.outcome == "more":
                return
            if scan.outcome == "unclosed":
                raise self._unclosed(scan.end)
            yield Record(self._fields(scan.spans), position, scan.end, repaired)
            position = scan.end

    def _next_special(self, position: int) -> int:
        text, quote, escape = self.text, self.syntax.quote, self.syntax.escape
        found = text.find(quote, position) if quote else -1
        if found < 0:
            found = self.size
        if escape:
            escaped = text.find(escape, position, found)
            if escaped >= 0:
                return escaped
        return found

    def _scan(self, position: int, way: int, limit: int | None, *, stop_if_malformed: bool = False) -> _Scan:
        """Read one record; more than ``limit`` fields are of no interest."""
        text, size, syntax = self.text, self.size, self.syntax
        quote, padded = syntax.quote, bool(syntax.pad)
        spans: list[_Span] = []
        while limit is None or len(spans) < limit:
            first = text[position : position + 1]
            opening = -1
            if first == quote:
                opening = position
            elif padded and first == " " and quote is not None:
                opened = syntax.opening.match(text, position)
                if opened is not None:
                    opening = opened.end() - 1
            if opening < 0:
                kind, start, ends = _PLAIN, position, self._separator(position)
                stop = size if ends is None else ends.start(ends.lastindex or 0)
            else:
                kind, start = _QUOTED, opening + 1
                everywhere = way == _LENIENT_EVERYWHERE
                stop = self._lenient_closing(opening, way) if everywhere else self._closing(opening)
                if stop < 0:
                    return _Scan("unclosed" if self.final else "more", spans, opening)
                ends = syntax.after_quote.match(text, stop + 1)
                if ends is None:
                    if not self.final and self._may_become_delimiter(stop + 1):
                        return _Scan("more", spans, opening)
                    if stop_if_malformed:
                        return _Scan("malformed", spans, opening)
                    if way == _LENIENT:
                        stop = self._lenient_closing(opening, way)
                        if stop < 0:
                            return _Scan("unclosed" if self.final else "more", spans, opening)
                        ends = syntax.after_quote.match(text, stop + 1)
                    else:
                        kind, start = (_PLAIN if way == _LITERAL else _RAW), position
                        ends = self._separator(position if way == _LITERAL else stop + 1)
                        stop = size if ends is None else ends.start(ends.lastindex or 0)
            spans.append((kind, start, stop))
            if ends is None or ends.lastindex != 1:
                position = size if ends is None else ends.end()
                # Where the text ends, more may follow: a rest of the field, or "\n" after "\r".
                certain = self.final or position < size or (ends is not None and ends.group().endswith("\n"))
                return _Scan("done" if certain else "more", spans, position)
            position = ends.end()
        return _Scan("wide", spans, position)

    def _separator(self, position: int) -> re.Match[str] | None:
        """What ends the unquoted text at ``position``: group 1 a delimiter, else a line end or the end of the text."""
        if self.syntax.plain is not None:
            return self.syntax.plain.match(self.text, position)
        search = self.syntax.separator.search
        found = search(self.text, position)
        while found is not None and found.lastindex is None:
            found = search(self.text, found.end())
        return found

    def _closing(self, opening: int) -> int:
        """The place of the quote that closes the one at ``opening``, or -1: the last of an odd run of quotes."""
        text, quote, escape = self.text, self.syntax.quote or "", self.syntax.escape
        closing = text.find(quote, opening + 1)
        if closing >= 0 and escape is not None and text.find(escape, opening + 1, closing) >= 0:
            closing = self._closing_with_escapes(opening)
        elif closing >= 0 and text[closing + 1 : closing + 2] == quote:
            if escape is not None:
                closing = self._closing_with_escapes(opening)
            else:
                run = self.syntax.quote_run.match(text, closing)
                if run is not None and (run.end() - run.start()) % 2 == 0:
                    run = self.syntax.odd_run.search(text, run.end())
                closing = -1 if run is None else run.end() - 1
        # At the end of the text, another quote may follow and make it a doubled one.
        return closing if self.final or closing + 1 < self.size else -1

    def _closing_with_escapes(self, opening: int) -> int:
        for run in self.syntax.quote_run.finditer(self.text, opening + 1):
            if run.lastindex is not None and (run.end() - run.start()) % 2:
                return run.end() - 1
        return -1

    def _lenient_closing(self, opening: int, way: int) -> int:
        since, run, found = self.lenient_found.get(way, (0, -1, -1))
        if since <= opening < run:
            return found
        pattern = self.syntax.lenient_odd if way == _LENIENT else self.syntax.lenient_any
        match = pattern.search(self.text, opening + 1)
        run, found = (self.size, -1) if match is None else (match.start(), match.end() - 1)
        self.lenient_found[way] = (opening, run, found)
        return found

    def _may_become_delimiter(self, position: int) -> bool:
        """Whether the text ends within what may be a delimiter."""
        delimiter = self.syntax.delimiter
        if delimiter is None or len(delimiter) < 2:
            return False
        text, size = self.text, self.size
        while self.syntax.pad and position < size and text[position] == " ":
            if size - position < len(delimiter) and delimiter.startswith(text[position:]):
                return True
            position += 1
        return size - position < len(delimiter) and delimiter.startswith(text[position:])

    def _choose(self, position: int) -> _Scan:
        """Choose a reading for the record at ``position``, whose quoting is malformed."""
        if self.width is None:
            return self._scan(position, _VERBATIM, None)
        best: _Scan | None = None
        uncertain = False
        for way in (_VERBATIM, _LITERAL, _LENIENT, _LENIENT_EVERYWHERE):
            scan = self._scan(position, way, self.width)
            if scan.outcome == "more":
                # It ends later than any reading that has ended, so it matters only if there is none.
                uncertain = True
            elif scan.outcome == "done" and len(scan.spans) == self.width and (best is None or scan.end < best.end):
                best = scan
        if best is not None:
            return best
        if uncertain:
            return _Scan("more", [], position)
        return self._scan(position, _VERBATIM, None)

    def _fields(self, spans: list[_Span]) -> list[str]:
        text, syntax = self.text, self.syntax
        quote, escape = syntax.quote, syntax.escape
        fields = []
        for kind, start, end in spans:
            field = text[start:end]
            if kind == _QUOTED:
                if escape is not None and escape in field:
                    field = syntax.unescape_quoted.sub(r"\1\2", field)
                elif quote is not None and quote in field:
                    field = field.replace(quote + quote, quote)
            elif kind == _PLAIN and escape is not None and escape in field:
                field = syntax.unescape_plain.sub(r"\1", field)
            fields.append(field)
        return fields

    def _unclosed(self, opening: int) -> UnclosedQuote:
        line = self.first_line + sum(1 for _ in _LINE_END_PATTERN.finditer(self.text, 0, opening))
        return UnclosedQuote(
            f"The quote that opens a field in line {line} is never closed: a closing quote was expected before the end "
            "of the file; close it, or set quote to none for the dataset.",
            line=line,
        )
