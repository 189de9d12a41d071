"""Finding out how a delimited text is written: delimiter, quote, escape character, header and preamble."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from airflow_lake_provider.errors import UnclosedQuote
from airflow_lake_provider.medallion.columns import column_names
from airflow_lake_provider.medallion.dialect import Dialect, Doubt, LineEnd, ReadOptions
from airflow_lake_provider.medallion.reading.detect_dialect import Choice, beginning, choose_dialect
from airflow_lake_provider.medallion.reading.detect_header import holds_value, preamble_length, table_width
from airflow_lake_provider.medallion.reading.detect_obvious import UNCERTAIN_FROM
from airflow_lake_provider.medallion.reading.detect_values import is_blank, is_value, kind_of
from airflow_lake_provider.medallion.reading.records import Record, read_records
from airflow_lake_provider.medallion.reading.uniform import find_uniform

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_SEPARATOR_LINE: Final = re.compile(r'"?sep=([^"\r\n]{1,3})"?(?=\r|\n|\Z)', re.IGNORECASE)
_NAMES: Final[dict[str, str]] = {
    ",": "comma",
    ";": "semicolon",
    "\t": "tab",
    "|": "vertical bar",
    ":": "colon",
    " ": "space",
}
_FEWEST_DELIMITERS: Final = 3
_FEWEST_RECORDS: Final = 3
# The header, 100 records whose cells are looked at, and a preamble with the records that it is told from.
_LEADING: Final = 120
_CHECKED_CHARACTERS: Final = 256_000


@dataclass(frozen=True, slots=True)
class Detection:
    """What was found out about a text.

    ``dialect`` has the default encoding, which the text no longer shows. ``header`` holds the original texts of the
    header record, or is None where there is none. ``width`` is the number of columns: that of the header, else that
    of the first record unless most records of the sample agree on another (fields beyond it are never lost, they only
    have no column of their own).
    """

    dialect: Dialect
    header: list[str] | None
    width: int
    doubts: list[Doubt]


def detect(sample: str, *, complete: bool, options: ReadOptions, name: str = "") -> Detection:
    """Find out how the text that begins with ``sample`` is written.

    ``sample`` is decoded and without a byte order mark; ``complete`` says that it is the whole text, else its last,
    cut-off record is left out of account. What ``options`` decides is taken as it is. ``name`` is the file's name,
    whose ending only tips the scales. A first line ``sep=;`` names the delimiter and counts as preamble.
    """
    start = len(sample) - len(sample.lstrip("\r\n"))
    separator = _SEPARATOR_LINE.match(sample, start)
    skipped = 0
    chosen = options
    if separator is not None:
        skipped = 1
        if options.delimiter is None:
            chosen = replace(options, delimiter=separator[1].replace("\\t", "\t"))
    choice = choose_dialect(sample, complete=complete, options=chosen, name=name, skipped=skipped)
    dialect = choice.best.dialect
    text, whole = sample, complete
    sample = beginning(text, _CHECKED_CHARACTERS)
    complete = whole and len(sample) == len(text)
    records = _read(sample, dialect, complete, choice.best.width or None)
    if len(records) < _FEWEST_RECORDS and len(sample) < len(text):
        # A quoted field takes up most of it.
        sample, complete = text, whole
        records = _read(sample, dialect, complete, choice.best.width or None)
    preamble = _preamble(records, options, skipped)
    if chosen.delimiter is None and dialect.delimiter is not None and _width_at(records, preamble) == 1:
        # A later record shows that what seemed to be a preamble is none.
        chosen = replace(chosen, delimiter="")
        rejected = choice.best
        choice = choose_dialect(sample, complete=complete, options=chosen, name=name, skipped=skipped)
        choice = replace(choice, rejected=rejected)
        dialect = choice.best.dialect
        records = _read(sample, dialect, complete, None)
        preamble = _preamble(records, options, skipped)
    body = records[preamble:]
    has_header = options.header
    if has_header is None:
        has_header = bool(body) and not holds_value(body[0].fields)
        if has_header and dialect.delimiter is None:
            # Numbers in columns made of spaces are read as one text, which is no name either.
            has_header = not all(map(is_value, body[0].fields[0].split() or [""]))
    header = list(body[0].fields) if has_header and body else None
    width = len(header) if header is not None else table_width([record.fields for record in body])
    dialect = replace(
        dialect,
        line_end=_line_end(sample, records),
        skip_initial_space=False,
        header=has_header,
        preamble=preamble,
    )
    if _begins_with_spaces(body, dialect) and spaces_follow_delimiters(sample, dialect, final=complete):
        dialect = replace(dialect, skip_initial_space=True)
        if header is not None:
            header = [header[0], *(text[1:] if text[:1] == " " else text for text in header[1:])]
    doubts = _Doubts(sample, dialect, options, records, header, width, skipped)
    return Detection(dialect, header, width, doubts.found(choice))


def spaces_follow_delimiters(text: str, dialect: Dialect, *, final: bool = True) -> bool:
    """Whether a space follows every delimiter outside quotes, save at the end of a record, and there are at least 3.

    This is what ``skip_initial_space`` asks of a whole text: then one space after each delimiter belongs to the
    dialect. The answer is always no where the delimiter is a space or ends with one.
    """
    delimiter, quote = dialect.delimiter, dialect.quote
    if delimiter is None or delimiter.endswith(" "):
        return False
    separator = re.escape(delimiter)
    bare = re.compile(rf"{separator}(?![ \r\n]|\Z)")
    quoted: re.Pattern[str] | None = None
    if quote is not None:
        q = re.escape(quote)
        escaped = rf"|{re.escape(dialect.escape)}[\s\S]" if dialect.escape and dialect.escape != quote else ""
        inner = rf"(?:[^{q}{re.escape(dialect.escape or '')}]|{q}{q}{escaped})*+"
        quoted = re.compile(rf"(?:\A|(?<={separator})) *{q}{inner}{q}")
    count = 0
    plain = replace(dialect, skip_initial_space=False)
    try:
        for record in read_records(text, plain, final=final):
            raw = text[record.start : record.end]
            if quoted is not None and quote is not None and quote in raw:
                raw = quoted.sub(lambda match: " " if match[0].startswith(" ") else "x", raw)
            if bare.search(raw) is not None:
                return False
            count += raw.count(delimiter + " ")
    except UnclosedQuote:
        pass
    return count >= _FEWEST_DELIMITERS


def _begins_with_spaces(records: Sequence[Record], dialect: Dialect) -> bool:
    """A quick look that spares most texts the thorough one: plain fields would begin with the space."""
    delimiter = dialect.delimiter
    if delimiter is None or delimiter.endswith(" ") or not records:
        return False
    return all(
        not text or text[0] == " " or dialect.quote is not None for record in records[:5] for text in record.fields[1:]
    )


def _read(sample: str, dialect: Dialect, complete: bool, width: int | None) -> list[Record]:
    """The records of a sample; of those that are well formed and of one width only the leading ones, by which all
    decisions are made then."""
    uniform = find_uniform(sample, dialect, final=complete)
    if uniform is not None:
        return uniform.leading(_LEADING)
    records: list[Record] = []
    try:
        records.extend(read_records(sample, dialect, width=width, final=complete))
        if not records and not complete:
            # Not even the first record ends within the sample.
            records.extend(read_records(sample, dialect, width=width))
    except UnclosedQuote:
        # The reading of the whole text will say so; what stands before it shows how the text is written.
        records = []
        try:
            for record in read_records(sample, dialect, width=width):
                records.append(record)
        except UnclosedQuote:
            pass
    return records


def _preamble(records: Sequence[Record], options: ReadOptions, skipped: int) -> int:
    if options.preamble is not None:
        return options.preamble
    if options.header is False:
        return skipped
    return preamble_length([record.fields for record in records], skipped)


def _width_at(records: Sequence[Record], place: int) -> int:
    return len(records[place].fields) if place < len(records) else 0


def _line_end(sample: str, records: Sequence[Record]) -> LineEnd:
    """The line end outside quotes, or "mixed"."""
    if "\r" not in sample:
        return "\n"
    pairs, returns, newlines = sample.count("\r\n"), sample.count("\r"), sample.count("\n")
    if pairs == returns == newlines:
        return "\r\n"
    if newlines == 0:
        return "\r"
    ends: Counter[LineEnd] = Counter()
    for record in records:
        if sample.endswith("\r\n", record.start, record.end):
            ends["\r\n"] += 1
        elif sample.endswith("\n", record.start, record.end):
            ends["\n"] += 1
        elif sample.endswith("\r", record.start, record.end):
            ends["\r"] += 1
    if len(ends) > 1:
        return "mixed"
    return next(iter(ends), "\n")


def describe(delimiter: str | None) -> str:
    """A delimiter in words, for messages."""
    if delimiter is None:
        return "no delimiter"
    return _NAMES.get(delimiter) or f"delimiter {delimiter!r}"


class _Doubts:
    def __init__(
        self,
        sample: str,
        dialect: Dialect,
        options: ReadOptions,
        records: Sequence[Record],
        header: Sequence[str] | None,
        width: int,
        skipped: int,
    ) -> None:
        self.sample = sample
        self.dialect = dialect
        self.options = options
        self.records = records
        self.header = header
        self.width = width
        self.skipped = skipped
        self.body = records[dialect.preamble :]
        self.data = self.body[1:] if header is not None else self.body
        self.doubts: list[Doubt] = []

    def found(self, choice: Choice) -> list[Doubt]:
        self._about_delimiter(choice)
        if self.body:
            self._about_preamble()
            self._about_header()
            self._about_widths()
        self._about_quotes()
        if self.dialect.line_end == "mixed":
            self._add("line_ends_mixed", "Records end with different line ends; each of them ends a record.")
        return self.doubts

    def _add(
        self,
        code: str,
        message: str,
        setting: str | None = None,
        record: Record | None = None,
        count: int | None = None,
    ) -> None:
        line = None
        if record is not None:
            line = 1 + sum(1 for _ in _LINE_END.finditer(self.sample, 0, record.start))
        self.doubts.append(Doubt(code, message, setting, line, count))

    def _about_delimiter(self, choice: Choice) -> None:
        best, runner_up, rejected = choice.best, choice.runner_up, choice.rejected
        if rejected is not None:
            self._add(
                "delimiter_not_in_header",
                f"Later records have {describe(rejected.dialect.delimiter)}, the header record has not, so the text "
                "is read as one column; set preamble to the number of records before the header.",
                "preamble",
                self.body[0] if self.body else None,
            )
        if runner_up is not None and runner_up.score > UNCERTAIN_FROM * best.score and len(self.records) > 0:
            self._add(
                "delimiter_uncertain",
                f"The text was read with {describe(best.dialect.delimiter)}; it would make nearly as good a table with "
                f"{describe(runner_up.dialect.delimiter)}.",
                "delimiter",
            )

    def _about_preamble(self) -> None:
        count = self.dialect.preamble
        if count and self.options.preamble is None:
            what = "a line that names the delimiter" if count == self.skipped else "taken for a preamble"
            self._add(
                "preamble_found",
                f"{_records(count)} before the header {'is' if count == 1 else 'are'} {what} and not loaded.",
                "preamble",
                self.body[0],
                count,
            )

    def _about_header(self) -> None:
        if self.header is None:
            if self.options.header is None:
                self._about_missing_header()
            return
        blank = sum(is_blank(text) for text in self.header)
        if blank:
            self._add(
                "header_blank",
                f"{_count(blank, 'column')} of {len(self.header)} without a name in the header: named by position.",
                "header",
                self.body[0],
                blank,
            )
        names = column_names(self.header)
        plain = [column_names([text])[0] for text in self.header if not is_blank(text)]
        repeated = len(plain) - len(set(plain))
        if repeated:
            self._add(
                "header_repeated",
                f"{_count(repeated, 'column name')} of {len(names)} occur before in the header and get a number.",
                None,
                self.body[0],
                repeated,
            )
        if self.options.header is None and self.data:
            typed = any(kind_of(text) not in ("text", "blank") for record in self.data[:100] for text in record.fields)
            if not typed:
                self._add(
                    "header_uncertain",
                    "The first record was taken for the header, though the table holds nothing but text.",
                    "header",
                    self.body[0],
                )

    def _about_missing_header(self) -> None:
        first = self.body[0].fields
        different = 0
        for column, text in enumerate(first):
            below = [record.fields[column] for record in self.body[1:50] if column < len(record.fields)]
            kinds = [kind_of(cell) for cell in below if not is_blank(cell)]
            different += bool(kinds) and kind_of(text) not in kinds
        uncertain = len(self.body) > 2 and different * 2 > len(first)
        self._add(
            "header_uncertain" if uncertain else "header_missing",
            "The first record holds a number, a date or a boolean, so it was taken for data and the columns are named "
            "by position" + (", though the records below look different." if uncertain else "."),
            "header",
            self.body[0],
        )

    def _about_widths(self) -> None:
        short = [record for record in self.data if len(record.fields) < self.width]
        long = [record for record in self.data if len(record.fields) > self.width]
        if self.header is not None and len(self.data) > 1:
            for code, odd, shift in (("header_short", long, 1), ("header_long", short, -1)):
                if len(odd) == len(self.data) and all(len(record.fields) == self.width + shift for record in odd):
                    more = "more" if shift > 0 else "less"
                    self._add(
                        code,
                        f"Every record in the sample has one field {more} than the header has names.",
                        "header",
                        self.body[0],
                        len(odd),
                    )
            if 2 * len(long) > len(self.data) and not any(doubt.code == "header_short" for doubt in self.doubts):
                self._add(
                    "header_narrow",
                    "Most records in the sample are wider than the header record; if the header comes later, set "
                    "preamble to the number of records before it.",
                    "preamble",
                    self.body[0],
                    len(long),
                )
        if short:
            self._add(
                "records_short",
                f"{_records(len(short))} in the sample {'has' if len(short) == 1 else 'have'} fewer than {self.width} "
                "fields; what is missing is null.",
                "delimiter",
                short[0],
                len(short),
            )
        if long:
            self._add(
                "records_long",
                f"{_records(len(long))} in the sample {'has' if len(long) == 1 else 'have'} more than {self.width} "
                "fields; the surplus is kept in _rescued.",
                "delimiter",
                long[0],
                len(long),
            )

    def _about_quotes(self) -> None:
        repaired = [record for record in self.records if record.repaired]
        if repaired:
            self._add(
                "quoting_malformed",
                f"{_records(len(repaired))} in the sample {'has' if len(repaired) == 1 else 'have'} text behind a "
                "closing quote; nothing of it is lost.",
                "quote",
                repaired[0],
                len(repaired),
            )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _records(count: int) -> str:
    return _count(count, "record")
