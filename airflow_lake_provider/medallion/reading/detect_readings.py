"""What each dialect makes of the beginning of a text, and how good that is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final

from airflow_lake_provider.errors import UnclosedQuote
from airflow_lake_provider.medallion.dialect import Dialect, ReadOptions
from airflow_lake_provider.medallion.reading.detect_header import preamble_length
from airflow_lake_provider.medallion.reading.detect_values import cleanliness, is_blank, kind_of
from airflow_lake_provider.medallion.reading.records import read_records

SCORED_RECORDS: Final = 400
_SCORED_CELLS: Final = 1_500
FEWEST_RECORDS: Final = 3
"""A reading with fewer records, of less than half of the text, cannot be judged by them."""
_FEWEST_TELLING: Final = 3
MOST_PROOF: Final = 1.3
GAIN_OF_ONE_COLUMN: Final = 0.42
# A delimiter that the first record has not is less probable than one that it has.
PREAMBLE_FACTOR: Final = 0.72
HINT_FACTOR: Final = 1.3
OFTEN_PUNCTUATION: Final = 0.75
"""Up to which prior a delimiter needs a proof."""

# How probable a delimiter is before the text is seen.
PRIORS: Final[dict[str, float]] = {
    ",": 1.0,
    "\t": 1.0,
    ";": 1.0,
    "|": 0.98,
    "\x01": 0.95,
    "\x1c": 0.95,
    "\x1d": 0.95,
    "\x1e": 0.95,
    "\x1f": 0.95,
    "\x14": 0.9,
    "¦": 0.9,
    "§": 0.85,
    "¬": 0.85,
    "¤": 0.85,
    "؛": 0.85,
    "،": 0.85,
    "^": 0.85,
    "~": 0.85,
    "#": 0.75,
    "*": 0.75,
    "&": 0.75,
    "!": 0.75,
    ":": 0.7,
    " ": 0.65,
    "/": 0.55,
}
LONG_PRIORS: Final[dict[str, float]] = {
    "\t\t": 0.97,
    "||": 0.97,
    "::": 0.95,
    ";;": 0.95,
    "~~": 0.9,
    "^^": 0.9,
    "##": 0.9,
    "$$": 0.9,
    "@@": 0.9,
    "&&": 0.9,
    "**": 0.85,
    "%%": 0.85,
    "<>": 0.85,
    "=>": 0.8,
    "->": 0.8,
    "~|~": 0.97,
    "|~|": 0.97,
    "|@|": 0.97,
    "|#|": 0.97,
    "#|#": 0.97,
    "^|^": 0.97,
    "|^|": 0.97,
    "|;|": 0.97,
    "~^~": 0.97,
    "@|@": 0.97,
    "$|$": 0.97,
    "!|!": 0.97,
    ":|:": 0.97,
    "|||": 0.97,
    ":::": 0.95,
    "\t\t\t": 0.95,
    ", ": 0.9,
    "; ": 0.9,
    "| ": 0.85,
    " | ": 0.93,
}
QUOTES: Final = ('"', "'", "`")
ESCAPES: Final = "\\/\x00^~!#$@%&*|"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a dialect makes of the scored part of a text.

    ``records`` are the field texts, ``preamble`` how many of them stand before the header, ``repaired`` how many have
    malformed quoting, ``coverage`` the share of the text that was read before an unclosed quote or the end. ``score``
    compares readings, and is 0 where the delimiter does not occur in the header record.
    """

    dialect: Dialect
    records: list[list[str]]
    preamble: int
    repaired: int
    coverage: float
    unclosed: bool
    spanning: int
    score: float

    @property
    def width(self) -> int:
        """The number of fields of the header record."""
        return len(self.records[self.preamble]) if self.records else 0

    @property
    def consistency(self) -> float:
        """The share of the records, from the header on, that have the most frequent width."""
        return _share_of_mode([len(fields) for fields in self.records[self.preamble :]])


class Detector:
    """The candidates for one text, and the readings that they give.

    ``text`` is the scored part, ``complete`` says that nothing follows it; what ``options`` decides is taken as it is;
    ``skipped`` is the number of records at the beginning that say nothing about the table.
    """

    def __init__(self, text: str, complete: bool, options: ReadOptions, skipped: int) -> None:
        self.text = text
        self.complete = complete
        self.options = options
        self.skipped = skipped
        self._best: dict[tuple[str | None, bool], Reading] = {}

    def candidates(self) -> Iterable[str]:
        """The delimiters that may be."""
        return (delimiter for delimiter in (*PRIORS, *LONG_PRIORS) if self.is_candidate(delimiter))

    def is_candidate(self, delimiter: str) -> bool:
        """Whether ``delimiter`` occurs in one of the first lines, where the header is, and often enough.

        That is in a fair share of the lines, or of those that are left when quoted fields with line breaks in them
        are taken out.
        """
        lines = self._first_lines
        often = delimiter in self._head and sum(delimiter in line for line in lines) >= max(1, len(lines) // 4)
        return often or (delimiter in self.text and self._is_around_quotes(delimiter))

    @cached_property
    def _first_lines(self) -> list[str]:
        return [line for line in _LINE_END.split(self.text[:20_000]) if line]

    @cached_property
    def _head(self) -> str:
        return "\n".join(self._first_lines[:12])

    @cached_property
    def whole_lines(self) -> list[str]:
        """The lines that hold something, without a last one that may go on."""
        text = self.text if self.complete else self.text[: self.text.rfind("\n") + 1]
        return [line for line in _LINE_END.split(text) if line]

    def _is_around_quotes(self, delimiter: str) -> bool:
        if '"' not in self.text or not delimiter.strip(" "):
            return False
        lines = [line for line in _LINE_END.split(_long_fields(delimiter).sub("x", self.text)) if line]
        places = [place for place, line in enumerate(lines) if delimiter in line]
        return bool(places) and places[0] < 12 and len(places) >= len(lines) // 4

    def best_variation(self, delimiter: str | None) -> Reading:
        """The reading with ``delimiter`` whose quote and escape character make it the best formed one."""
        asked = (delimiter, self.complete)
        if asked not in self._best:
            reading = self._best_variation(delimiter)
            if self.complete != asked[1]:
                return reading
            self._best[asked] = reading
        return self._best[asked]

    def _best_variation(self, delimiter: str | None) -> Reading:
        options = self.options
        quote = self.probable_quote(delimiter) if options.quote is None else options.quote or None
        plain = Dialect(delimiter=delimiter, quote=quote, escape=options.escape or None)
        best = self._read(plain)
        if options.escape is None:
            for escape in self._probable_escapes(best):
                reading = self._read(replace(plain, escape=escape))
                if _formedness(reading) > _formedness(best) + 1e-9:
                    best = reading
        if options.quote is None and quote is not None and self._quotes_are_ordinary(best):
            reading = self._read(replace(plain, quote=None))
            if _formedness(reading) >= _formedness(best) + (0 if best.repaired or best.unclosed else 0.1):
                best = reading
        if best.unclosed:
            # Where the quote is missing is for the reading of the whole text to say; it is no reason to take another
            # delimiter.
            best = replace(best, score=max(best.score, 0.9 * self._read(replace(best.dialect, quote=None)).score))
        return best

    def telling_fields(self, delimiter: str | None, quote: str) -> int:
        """The number of fields in one line that would be read wrongly, were ``quote`` not a quote."""
        if quote not in self.text:
            return 0
        _, whole = _openings(delimiter, quote)
        return sum(
            (delimiter is not None and delimiter in inner) or quote * 2 in inner for inner in whole.findall(self.text)
        )

    def proof(self, reading: Reading) -> float:
        """A factor for a delimiter that prose and names have too, such as the space.

        Quotes around just what holds it speak for it, a table of nothing but words against it.
        """
        quote = reading.dialect.quote
        if quote and not reading.repaired and self.telling_fields(reading.dialect.delimiter, quote) >= _FEWEST_TELLING:
            return MOST_PROOF
        rows = reading.records[reading.preamble + 1 :][:100] or reading.records
        for column in range(reading.width):
            cells = [fields[column] for fields in rows if column < len(fields) and not is_blank(fields[column])]
            if cells and sum(kind_of(cell) != "text" for cell in cells) * 2 > len(rows):
                return 1.0
        return 0.55

    def probable_quote(self, delimiter: str | None) -> str:
        """The quote, by the fields that begin and end with it."""
        enclosed = {
            quote: sum(1 for _ in _openings(delimiter, quote)[1].finditer(self.text))
            for quote in QUOTES
            if quote in self.text
        }
        for quote in QUOTES[1:]:
            if quote not in enclosed or enclosed.get('"', 0) * 5 > enclosed[quote]:
                continue
            if not enclosed[quote] and _openings(delimiter, quote)[0].search(self.text) is None:
                continue
            with_it = self._read(Dialect(delimiter=delimiter, quote=quote))
            if with_it.repaired or with_it.unclosed:
                with_it = self._read(Dialect(delimiter=delimiter, quote=quote, escape="\\"))
            without = self._read(Dialect(delimiter=delimiter))
            if with_it.repaired or with_it.unclosed or with_it.consistency < without.consistency:
                continue
            spans = with_it.spanning > 0 and with_it.consistency > without.consistency
            if spans or self.telling_fields(delimiter, quote) or _is_column_style(without, quote):
                return quote
        return '"'

    def _probable_escapes(self, reading: Reading) -> list[str]:
        """Characters that stand before quotes inside quoted fields, or before delimiters where nothing is quoted."""
        dialect, text = reading.dialect, self.text
        quote, delimiter = dialect.quote, dialect.delimiter
        found: list[str] = []
        troubled = reading.repaired > 0 or reading.unclosed or reading.consistency < 1
        if not troubled and not (quote is not None and reading.spanning):
            return found
        if quote is not None and quote in text:
            before = Counter(re.findall(rf"(?<!{re.escape(quote)})([{re.escape(ESCAPES)}]){re.escape(quote)}", text))
            for escape, _ in before.most_common(3):
                if escape not in (quote, delimiter):
                    found.append(escape)
        if delimiter is not None and "\\" not in found and "\\" + delimiter in text:
            found.append("\\")
        return found

    def _quotes_are_ordinary(self, reading: Reading) -> bool:
        """Whether fields begin with quotes that do not enclose them, much more often than with such that do."""
        delimiter, quote = reading.dialect.delimiter, reading.dialect.quote
        if quote is None or not (reading.repaired or reading.unclosed or reading.spanning):
            return False
        opening, whole = _openings(delimiter, quote)
        opened = sum(1 for _ in opening.finditer(self.text))
        enclosed = sum(1 for _ in whole.finditer(self.text))
        stray = opened - enclosed
        if delimiter is not None and delimiter.strip("\t") == "" and enclosed == 0:
            return stray > 0
        return stray >= 3 and stray > enclosed

    def _read(self, dialect: Dialect) -> Reading:
        records, repaired, end, unclosed, spanning = self._records(dialect, None)
        if repaired and records:
            width = Counter(len(fields) for fields in records).most_common(1)[0][0]
            records, repaired, end, unclosed, spanning = self._records(dialect, width)
        first = min(self.skipped, max(len(records) - 1, 0))
        if self.options.preamble is not None:
            preamble = min(self.options.preamble, max(len(records) - 1, 0))
        elif self.options.header is False:
            preamble = first
        else:
            preamble = preamble_length(records, first)
        coverage = min(1.0, (end + 1) / (len(self.text) + 1))
        reading = Reading(dialect, records, preamble, repaired, coverage, unclosed, spanning, 0.0)
        factor = PREAMBLE_FACTOR if self.options.preamble is None and preamble > first else 1.0
        return replace(reading, score=_score(reading) * factor)

    def _records(self, dialect: Dialect, width: int | None) -> tuple[list[list[str]], int, int, bool, int]:
        records: list[list[str]] = []
        repaired = end = spanning = 0
        unclosed = False
        try:
            for record in read_records(self.text, dialect, width=width, final=self.complete):
                records.append(record.fields)
                repaired += record.repaired
                end = record.end
        except UnclosedQuote:
            unclosed = True
        if not records and not self.complete:
            # Not even one record ends within the text.
            self.complete = True
            return self._records(dialect, width)
        if self.complete and not unclosed:
            end = len(self.text)
        if dialect.quote is not None and dialect.quote in self.text:
            spanning = sum("\n" in text or "\r" in text for fields in records for text in fields)
        return records, repaired, end, unclosed, spanning


@lru_cache(maxsize=256)
def _openings(delimiter: str | None, quote: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns for an opening quote, and for a whole quoted field within a line."""
    separator = re.escape(delimiter) if delimiter else r"(?!)"
    pad = "" if delimiter is not None and not delimiter.strip(" ") else " *"
    before = rf"(?:\A|(?<=[\r\n]){f'|(?<={separator})' if delimiter else ''})"
    q = re.escape(quote)
    inner = rf"((?:[^{q}\r\n]|{q}{q})*+)"
    return (
        re.compile(f"{before}{pad}{q}"),
        re.compile(rf"{before}{pad}{q}{inner}{q}{pad}(?={separator}|[\r\n]|\Z)"),
    )


@lru_cache(maxsize=256)
def _long_fields(delimiter: str) -> re.Pattern[str]:
    """A pattern for quoted fields; one that is not closed takes all that follows."""
    return re.compile(rf'(?:\A|(?<=[\r\n])|(?<={re.escape(delimiter)})) *"(?:[^"]|"")*+(?:"|\Z)')


def _is_column_style(reading: Reading, quote: str) -> bool:
    """Whether all texts of some column are enclosed in ``quote``."""
    records = reading.records[reading.preamble + 1 :][:200]
    for column in range(reading.width):
        cells = [fields[column].strip() for fields in records if column < len(fields)]
        texts = [cell for cell in cells if kind_of(cell) == "text" or quote in cell]
        enclosed = sum(len(cell) > 1 and cell[0] == quote == cell[-1] for cell in texts)
        if enclosed >= 2 and enclosed * 10 >= 9 * len(texts):
            return True
    return False


def _formedness(reading: Reading) -> float:
    """How well quotes and widths fit; only readings with one delimiter are compared by it."""
    count = max(len(reading.records), 1)
    score = reading.consistency * (1 - 0.8 * reading.repaired / count)
    if reading.unclosed or reading.coverage < 0.5:
        score *= 0.2 * reading.coverage
    return score


def _score(reading: Reading) -> float:
    delimiter = reading.dialect.delimiter
    table = reading.records[reading.preamble :]
    if not table or (delimiter is not None and reading.width < 2):
        return 0.0
    widths = [len(fields) for fields in table]
    mode, count = Counter(widths).most_common(1)[0]
    consistency = count / len(widths)
    if delimiter is not None and mode < 2:
        return 0.0
    near = sum(abs(width - mode) <= 1 for width in widths) / len(widths)
    consistency = 0.85 * consistency + 0.15 * near
    if delimiter is None:
        gain, prior = GAIN_OF_ONE_COLUMN, 1.0
    else:
        gain, prior = gain_of(mode), PRIORS.get(delimiter) or LONG_PRIORS.get(delimiter, 0.9)
    formed = (1 - 0.7 * reading.repaired / len(reading.records)) * (0.3 if reading.unclosed else 1.0)
    if delimiter is not None and prior < 0.95:
        # Comment signs and the like stand at the beginnings of lines.
        prior *= 1 - 0.5 * sum(map(is_blank, table[0])) / len(table[0])
    return consistency * _cells_score(table, mode) * gain * prior * formed * (0.5 + 0.5 * reading.coverage)


def gain_of(width: int) -> float:
    """What a reading of ``width`` fields is worth: the more, the less probable by chance."""
    return 1 - 0.6 / width


def scored_rows(count: int, width: int) -> tuple[int, int]:
    """Of ``count`` records every which one has its cells looked at, and how many of these at most."""
    return max(1, count // SCORED_RECORDS), max(10, _SCORED_CELLS // max(width, 1))


def row_cleanliness(fields: Sequence[str]) -> float | None:
    """How clean the cells of a record are; None where all are blank.

    A single cut-off cell in a wide row is as telling as one in a narrow row.
    """
    worst = 1.0
    row = 0.0
    cells = 0
    for text in fields:
        if is_blank(text):
            continue
        clean = cleanliness(text)
        worst = min(worst, clean)
        row += clean
        cells += 1
    return 0.7 * row / cells + 0.3 * worst if cells else None


def _cells_score(table: Sequence[Sequence[str]], width: int) -> float:
    """The mean cleanliness of the cells; columns that never hold anything count as unclean."""
    step, most = scored_rows(len(table), width)
    rows = table[::step][:most]
    total = weight = 0.0
    filled = [False] * width
    for fields in rows:
        clean = row_cleanliness(fields)
        if clean is None:
            continue
        total += clean
        weight += 1
        if not all(filled):
            for column, text in enumerate(fields[:width]):
                filled[column] = filled[column] or not is_blank(text)
    if not weight:
        return 0.3
    blank_columns = filled.count(False) / width
    return (total / weight) * (1 - 0.5 * blank_columns)


def _share_of_mode(widths: Sequence[int]) -> float:
    return Counter(widths).most_common(1)[0][1] / len(widths) if widths else 0.0
