"""Texts whose delimiter is obvious: a perfect table that no other candidate can come near to.

To compare candidates takes reading the text with each of them. Where one makes a perfect table, an upper bound of the
score of the others can be had by counting, and a lower bound of its own by a look at its cells. Where even these are
far apart the comparison is decided; where they are not, it is left to be made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final

from airflow_lake_provider.medallion.dialect import Dialect
from airflow_lake_provider.medallion.reading.detect_header import MOST_PREAMBLE_RECORDS, preamble_length
from airflow_lake_provider.medallion.reading.detect_readings import (
    ESCAPES,
    FEWEST_RECORDS,
    GAIN_OF_ONE_COLUMN,
    HINT_FACTOR,
    LONG_PRIORS,
    MOST_PROOF,
    OFTEN_PUNCTUATION,
    PREAMBLE_FACTOR,
    PRIORS,
    QUOTES,
    Detector,
    Reading,
    gain_of,
    row_cleanliness,
    scored_rows,
)
from airflow_lake_provider.medallion.reading.detect_values import is_blank
from airflow_lake_provider.medallion.reading.uniform import Uniform, find_uniform

UNCERTAIN_FROM: Final = 0.85
"""From which share of the best score on the second best reading makes the choice uncertain."""

_USUAL: Final = (",", "\t", ";", "|")
_MARGIN: Final = 1 - 1e-9  # for rounding
_FEWEST_LEADING: Final = 100
# How clean a cell is at least that is found to be a plain number or some plain words.
_SIMPLE: Final = 0.95
_WORDS: Final = r"[^\W_][\w .'’&()%#°+/@*$€£!?=:-]{0,120}+"
_CELL: Final = rf" *+(?:{_WORDS}(?:, {_WORDS}){{0,2}}+|-\d{{1,20}}+(?:\.\d{{1,20}}+)?+)?+"
_SIMPLE_ROW: Final = re.compile(rf"{_CELL}(?:\n{_CELL})*+")
_CHARACTERS: Final = frozenset("".join((*PRIORS, *LONG_PRIORS)))
_ESCAPED_QUOTE: Final = re.compile(rf'[{re.escape(ESCAPES)}]["\'`]')


def find_obvious(detector: Detector, hint: str | None) -> Reading | None:
    """The reading that is the best one beyond doubt, or None where readings have to be compared.

    Its ``records`` are the leading ones only, its ``score`` and ``coverage`` are lower bounds. ``hint`` is the
    delimiter that the name of the file suggests. What is compared in full all the same is kept by the ``detector``,
    which is left as it was.
    """
    options, text = detector.options, detector.text
    if options.quote is not None or options.escape is not None or options.preamble is not None or detector.skipped:
        return None
    first_line = text.lstrip("\r\n")[:20_000].partition("\n")[0]
    usual = _USUAL if options.delimiter is None else (options.delimiter,)
    counts = {delimiter: first_line.count(delimiter) for delimiter in usual if delimiter}
    for delimiter in sorted(counts, key=lambda delimiter: -counts[delimiter]):
        table = _perfect_table(detector, delimiter) if counts[delimiter] else None
        if table is None:
            continue
        reading = _as_reading(detector, delimiter, table)
        if options.delimiter is not None:
            return reading
        limit = UNCERTAIN_FROM * reading.score
        if limit <= GAIN_OF_ONE_COLUMN or _loses_blank_columns(reading, text):
            return None
        complete = detector.complete
        beaten = all(
            _is_beaten(detector, other, HINT_FACTOR if other == hint else 1.0, limit)
            for other in _others(delimiter, text)
        )
        unchanged = detector.complete == complete
        detector.complete = complete
        return reading if beaten and unchanged else None
    return None


def _perfect_table(detector: Detector, delimiter: str) -> Uniform | None:
    """The table that ``delimiter`` makes of the text if there is nothing about it that could be read otherwise."""
    text, options = detector.text, detector.options
    dialect = Dialect(delimiter=delimiter)
    table = find_uniform(text, dialect, final=detector.complete)
    if table is None or table.spans_lines or table.count < FEWEST_RECORDS or 2 * table.end < len(text):
        return None
    if options.header is not False and preamble_length(_judged(table)[:_FEWEST_LEADING]):
        # Of more records it would say the same: all have one width, and it looks at no more fields than these.
        return None
    if any(_opens(delimiter, quote, text) for quote in QUOTES[1:]) and detector.probable_quote(delimiter) != QUOTES[0]:
        return None
    return table


def _judged(table: Uniform) -> list[list[str]]:
    """The fields of the leading records, as many as judgements look at."""
    step, most = scored_rows(table.count, table.width)
    return [record.fields for record in table.leading(max(step * most, _FEWEST_LEADING))]


def _as_reading(detector: Detector, delimiter: str, table: Uniform) -> Reading:
    step, most = scored_rows(table.count, table.width)
    fields = _judged(table)
    coverage = 1.0 if detector.complete else (table.end + 1) / (len(detector.text) + 1)
    clean = _least_cleanliness(fields[::step][:most], table.width)
    score = clean * gain_of(table.width) * PRIORS.get(delimiter, 1.0) * (0.5 + 0.5 * coverage) * _MARGIN
    return Reading(table.dialect, fields, 0, 0, coverage, False, 0, score)


def _least_cleanliness(rows: Sequence[list[str]], width: int) -> float:
    """A lower bound of what the cells of a reading are worth."""
    total = weight = 0.0
    matches = _SIMPLE_ROW.fullmatch
    for fields in rows:
        text = "\n".join(fields)
        clean = row_cleanliness(fields) if matches(text) is None else _SIMPLE if text.strip(" \n") else None
        if clean is not None:
            total += clean
            weight += 1
    blank = sum(all(is_blank(fields[column]) for fields in rows) for column, _ in _blank_cells(rows[0]))
    return total / weight * (1 - 0.5 * blank / width) if weight else 0.0


def _blank_cells(fields: list[str]) -> Iterable[tuple[int, str]]:
    return ((column, text) for column, text in enumerate(fields) if is_blank(text))


def _loses_blank_columns(reading: Reading, text: str) -> bool:
    """Whether the delimiter may turn out to be a part of a longer one, which makes columns that are always blank."""
    delimiter = reading.dialect.delimiter or ""
    if not any(delimiter in longer and longer in text for longer in LONG_PRIORS):
        return False
    rows = reading.records[:_FEWEST_LEADING]
    return any(all(is_blank(fields[column]) for fields in rows) for column, _ in _blank_cells(rows[0]))


def _others(delimiter: str, text: str) -> list[str]:
    characters = {character for character in _CHARACTERS if character in text}
    return [
        other
        for other in (*PRIORS, *LONG_PRIORS)
        if other != delimiter and characters.issuperset(other) and (len(other) == 1 or other in text)
    ]


def _is_beaten(detector: Detector, delimiter: str, factor: float, limit: float) -> bool:
    """Whether a delimiter is no candidate, or its reading scores less than ``limit`` and has enough records to be
    judged by them."""
    text = detector.text
    if not any(_opens(delimiter, quote, text) for quote in QUOTES):
        # No quote is syntax, so that the records are the lines and nothing is malformed. Quoted fields that would prove
        # punctuation to be a delimiter are not there either.
        prior = factor * (PRIORS.get(delimiter) or LONG_PRIORS[delimiter])
        if prior < limit or prior * _most_of_lines(detector, delimiter) < limit:
            return True
    if not detector.is_candidate(delimiter):
        return True
    reading = detector.best_variation(delimiter)
    if len(reading.records) < FEWEST_RECORDS and reading.coverage < 0.5:
        return False
    score = factor * reading.score
    if score >= limit and PRIORS.get(delimiter, 1.0) <= OFTEN_PUNCTUATION:
        score *= detector.proof(reading)
    elif PRIORS.get(delimiter, 1.0) <= OFTEN_PUNCTUATION:
        score *= MOST_PROOF
    return score < limit


def _most_of_lines(detector: Detector, delimiter: str) -> float:
    """An upper bound of a score, but for the prior, where each line is a record and no quote is syntax."""
    widths = [found + 1 for found in map(str.count, detector.whole_lines, repeat(delimiter))]
    if _may_be_escaped(delimiter, detector.text):
        # Escaped delimiters make records narrower, and perhaps all of one width.
        return gain_of(max(widths))
    counts = Counter(widths)
    most = max(counts.values())
    mode = max(width for width, count in counts.items() if count == most)
    best = 0.0
    if mode > 1 and widths[0] > 1:
        best = (0.85 * most / len(widths) + 0.15) * gain_of(mode)
    if widths[-1] > 1 and len(set(widths[MOST_PREAMBLE_RECORDS:])) <= 1:
        best = max(best, PREAMBLE_FACTOR * gain_of(widths[-1]))
    return best


def _may_be_escaped(delimiter: str, text: str) -> bool:
    return "\\" + delimiter in text or _ESCAPED_QUOTE.search(text) is not None


def _opens(delimiter: str, quote: str, text: str) -> bool:
    """Whether ``quote`` stands where a field may begin."""
    if quote not in text:
        return False
    beginnings = ("\n", "\r", delimiter)
    if text.lstrip(" ").startswith(quote) or any(before + quote in text for before in beginnings):
        return True
    return " " + quote in text and any(_behind_spaces(before, quote).search(text) for before in beginnings)


@lru_cache(maxsize=256)
def _behind_spaces(before: str, quote: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(before)} +{quote}")
