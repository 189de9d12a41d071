"""Which delimiter, quote and escape character a text is written with.

Every candidate reads the beginning of the text. A reading is good where its records have one width, its cells look
as if they were cut at the right places, and its quotes are well formed. The delimiter is then the best of the good
ones that occurs in the header record, and the common ones win in case of doubt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from airflow_lake_provider.medallion.dialect import ReadOptions
from airflow_lake_provider.medallion.reading.detect_header import filled_width
from airflow_lake_provider.medallion.reading.detect_obvious import find_obvious
from airflow_lake_provider.medallion.reading.detect_readings import (
    FEWEST_RECORDS,
    HINT_FACTOR,
    OFTEN_PUNCTUATION,
    PRIORS,
    SCORED_RECORDS,
    Detector,
    Reading,
)
from airflow_lake_provider.medallion.reading.detect_values import is_blank, kind_of

SCORED_CHARACTERS: Final = 32_000
_SCORED_LINES: Final = 6_000
_FEWEST_LINES: Final = 6
_EXTENSIONS: Final[dict[str, str]] = {".tsv": "\t", ".tab": "\t", ".psv": "|"}
# What share of the best score a delimiter that no record lacks must have to go before what fits the records badly.
_EVER_PRESENT: Final[dict[str, float]] = {"\t": 0.0, ";": 0.6, "|": 0.6}
_LINE_END: Final = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Choice:
    """The best reading, and what came next with another delimiter (None where nothing did).

    ``few_records`` are the delimiters, be they good or not, that make too few records of the text to be judged by
    them, since a quoted field takes up most of it.
    """

    best: Reading
    runner_up: Reading | None
    rejected: Reading | None
    few_records: tuple[str, ...] = ()


def choose_dialect(text: str, *, complete: bool, options: ReadOptions, name: str = "", skipped: int = 0) -> Choice:
    """Choose delimiter, quote and escape character for the beginning of a text.

    ``text`` begins with the first line; ``complete`` says that it is the whole text; ``skipped`` is the number of
    records at its beginning that say nothing about the table. What ``options`` decides is not doubted. ``rejected``
    of the result is a reading that is better than the best one, had its delimiter occurred in the header record.
    Where the best one is obvious, its records are only the leading ones.
    """
    scored = beginning(text, SCORED_CHARACTERS)
    detector = Detector(scored, complete and len(scored) == len(text), options, skipped)
    obvious = find_obvious(detector, _hint(name))
    if obvious is not None:
        return Choice(obvious, None, None)
    choice = _choose(detector, name)
    best = choice.best
    if len(scored) < len(text) and (
        choice.few_records or best.coverage < 0.5 or best.dialect.quote is None or best.unclosed
    ):
        # A huge quoted field may begin here.
        scored = beginning(text, 8 * SCORED_CHARACTERS)
        choice = _choose(Detector(scored, complete and len(scored) == len(text), options, skipped), name)
        if len(scored) < len(text) and choice.few_records:
            # That is much to read, so no others are tried again.
            contenders = {*choice.few_records, choice.best.dialect.delimiter or choice.few_records[0]}
            choice = _choose(Detector(text, complete, options, skipped), name, contenders)
    return choice


def beginning(text: str, size: int) -> str:
    """The first ``size`` characters, or more where the lines are so long that these would be too few of them."""
    if len(text) <= size:
        return text
    ends = list(islice(_LINE_END.finditer(text), _FEWEST_LINES))
    return text[: max(size, ends[-1].end() if len(ends) == _FEWEST_LINES else len(text))]


def _choose(detector: Detector, name: str, contenders: Container[str] | None = None) -> Choice:
    options, complete = detector.options, detector.complete
    if options.delimiter is not None:
        return Choice(detector.best_variation(options.delimiter or None), None, None)
    hint = _hint(name)
    # One column is judged by less: without delimiters, every line with quotes is malformed and slow to read.
    few = beginning(detector.text, _SCORED_LINES)
    whole = Detector(few, detector.complete and few == detector.text, options, detector.skipped).best_variation(None)
    readings: list[Reading] = []
    rejected: Reading | None = None
    few_records: list[str] = []
    for delimiter in detector.candidates():
        if contenders is not None and delimiter not in contenders:
            continue
        reading = detector.best_variation(delimiter)
        if len(reading.records) < FEWEST_RECORDS and reading.coverage < 0.5:
            few_records.append(delimiter)
        if delimiter == hint:
            reading = replace(reading, score=reading.score * HINT_FACTOR)
        if PRIORS.get(delimiter, 1.0) <= OFTEN_PUNCTUATION:
            reading = replace(reading, score=reading.score * detector.proof(reading))
        if reading.score > 0:
            readings.append(reading)
        elif rejected is None or _promise(reading) > _promise(rejected):
            rejected = reading
    readings = _well_quoted(detector, _without_parts(readings))
    readings.sort(key=lambda reading: -reading.score)
    if not readings or whole.score >= readings[0].score or _typed_as_a_whole(whole, readings[0]):
        ranked = [whole, *readings]
    else:
        ranked = [*readings, whole]
    ranked = _ever_present_first(ranked)
    if few_records and not complete and (ranked[0] is whole or ranked[0].preamble > detector.skipped):
        # What seems to be lines of another kind is inside of a quoted field that does not end here.
        ranked.sort(key=lambda reading: not _ends_in_quotes(reading))
    best_delimiter = (ranked[0].dialect.delimiter or "").strip(" ") or None
    if rejected is not None and (ranked[0] is not whole or _promise(rejected) < 0.5):
        rejected = None
    others = [reading for reading in ranked[1:] if (reading.dialect.delimiter or "").strip(" ") != best_delimiter]
    return Choice(ranked[0], others[0] if others else None, rejected, tuple(few_records))


def _hint(name: str) -> str | None:
    """The delimiter that a file's name suggests."""
    name = name.lower().removesuffix(".gz")
    return next((delimiter for ending, delimiter in _EXTENSIONS.items() if name.endswith(ending)), None)


def _ends_in_quotes(reading: Reading) -> bool:
    """Whether well-formed records are followed by one with a quoted field that takes up most of the text."""
    delimiter, quote = reading.dialect.delimiter, reading.dialect.quote
    if delimiter not in (",", "\t", ";", "|") or quote is None or reading.repaired or reading.unclosed:
        return False
    return 0 < len(reading.records) < FEWEST_RECORDS and reading.coverage < 0.5 and not reading.preamble


def _ever_present_first(ranked: list[Reading]) -> list[Reading]:
    """Put a delimiter that no record lacks before those that fit the records badly, however ragged its own are."""
    for delimiter, share in _EVER_PRESENT.items():
        present = next((reading for reading in ranked if reading.dialect.delimiter == delimiter), None)
        if present is None or present is ranked[0] or not _is_ever_present(present):
            continue
        if present.score < share * ranked[0].score or not _fits_badly(ranked[0]):
            continue
        better = [reading for reading in ranked if reading is present or not _fits_badly(reading)]
        return [*better, *(reading for reading in ranked if reading not in better)]
    return ranked


def _is_ever_present(reading: Reading) -> bool:
    """Whether every record has the delimiter, outside quotes and in front of something."""
    records = reading.records
    if len(records) < 2 or reading.unclosed or any(len(fields) < 2 for fields in records):
        return False
    cut = sum(any(text.count('"') % 2 for text in fields) for fields in records)
    ends = sum(filled_width(fields) < 2 for fields in records)
    return 10 * cut < len(records) and 2 * ends < len(records)


def _fits_badly(reading: Reading) -> bool:
    """Whether there is no delimiter, or records that lack it, or records of so many widths that most are ragged."""
    widths = Counter(len(fields) for fields in reading.records)
    if reading.dialect.delimiter is None or not widths or widths[1]:
        return True
    return 2 * max(widths.values()) < len(reading.records)


def _promise(reading: Reading) -> float:
    """How much a reading looks like a table below its first records, whatever those hold."""
    widths = Counter(len(fields) for fields in reading.records)
    if not widths:
        return 0.0
    width, count = widths.most_common(1)[0]
    return 0.0 if width < 2 or count < 3 else count / len(reading.records)


def _well_quoted(detector: Detector, readings: list[Reading]) -> list[Reading]:
    """Mark down what cannot make sense of quotes, where another delimiter can."""

    def is_sound(reading: Reading) -> bool:
        return reading.dialect.quote is not None and not reading.repaired and not reading.unclosed

    sound = any(
        is_sound(reading)
        and reading.consistency >= 0.9
        and detector.telling_fields(reading.dialect.delimiter, reading.dialect.quote or "") + reading.spanning > 0
        for reading in readings
    )
    if not sound:
        return readings
    return [reading if is_sound(reading) else replace(reading, score=reading.score * 0.5) for reading in readings]


def _without_parts(readings: list[Reading]) -> list[Reading]:
    """Leave out single delimiters that only occur as part of a longer one that reads as well."""
    kept = []
    for reading in readings:
        delimiter = reading.dialect.delimiter or ""
        longer = [
            other
            for other in readings
            if other is not reading
            and delimiter in (other.dialect.delimiter or "")
            and delimiter != other.dialect.delimiter
            and (other.dialect.delimiter or "").strip()
            and other.consistency >= reading.consistency
            and _always_blank_columns(reading) >= other.width - 1 > 0
        ]
        if not longer:
            kept.append(reading)
    return kept


def _always_blank_columns(reading: Reading) -> int:
    records = reading.records[reading.preamble : reading.preamble + 100]
    return sum(
        all(column >= len(fields) or is_blank(fields[column]) for fields in records) for column in range(reading.width)
    )


def _typed_as_a_whole(whole: Reading, best: Reading) -> bool:
    """Whether each line is one value, such as a time or a date, that only looks as if it had delimiters."""
    if best.dialect.delimiter not in (" ", ":", "/", "-", "#", "*", "!", "&"):
        return False
    lines = whole.records[1:] or whole.records
    typed = sum(kind_of(fields[0]) in ("number", "date", "time", "token") for fields in lines[:SCORED_RECORDS])
    return typed * 10 >= 9 * min(len(lines), SCORED_RECORDS)
