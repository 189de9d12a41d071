"""What in a file breaks the declared types of its dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_lake_provider.medallion.types.dialects import DUCKDB, SqlDialect
from airflow_lake_provider.medallion.types.measure import Run
from airflow_lake_provider.medallion.types.model import ColumnSummary, ColumnType
from airflow_lake_provider.medallion.types.settings import TypingSettings
from airflow_lake_provider.medallion.types.sql import fits, null_trim

_COLUMNS_PER_QUERY: Final = 64


@dataclass(frozen=True, slots=True)
class Violation:
    """How often a column of a file breaks the contract, and where first.

    ``declared`` is the type that ``count`` of its values do not fit, None where the column is not declared and yet has
    ``count`` values. ``first_row`` is the number of the first such record in its file.
    """

    column: str
    declared: ColumnType | None
    count: int
    first_row: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The records of a file that break the contract: how many there are, and the numbers of the first ones."""

    count: int
    first_rows: tuple[int, ...]


def find_violations(
    run: Run,
    relation: str,
    columns: Sequence[str],
    settings: TypingSettings,
    summaries: Mapping[str, ColumnSummary],
    *,
    row_number: str = "_row_number",
    dialect: SqlDialect = DUCKDB,
) -> list[Violation]:
    """What in one file breaks its dataset's declared types, in the order of ``columns``.

    ``summaries`` are those of the file; only columns that they do not clear are read.
    """
    suspects = suspicious(columns, settings, summaries)
    found: list[Violation] = []
    for start in range(0, len(suspects), _COLUMNS_PER_QUERY):
        chunk = suspects[start : start + _COLUMNS_PER_QUERY]
        conditions = [breaks(f"v{n}", settings.types.get(name), settings, dialect) for n, name in enumerate(chunk)]
        places = [f"CASE WHEN {condition} THEN r END AS b{n}" for n, condition in enumerate(conditions)]
        values = _values(relation, chunk, row_number, settings, dialect)
        aggregates = [f"count(b{n}), min(b{n})" for n in range(len(chunk))]
        row = run(f"SELECT {', '.join(aggregates)} FROM (SELECT {', '.join(places)} FROM ({values}))")[0]
        found += [
            Violation(column, settings.types.get(column), count, first)
            for column, count, first in zip(chunk, row[::2], row[1::2], strict=True)
            if count
        ]
    return found


def find_rejected(
    run: Run,
    relation: str,
    columns: Sequence[str],
    settings: TypingSettings,
    summaries: Mapping[str, ColumnSummary],
    *,
    row_number: str = "_row_number",
    shown: int = 10,
    dialect: SqlDialect = DUCKDB,
) -> Rejected:
    """The records of one file that ``typed_query`` with ``only_fitting`` leaves out, the numbers of ``shown`` of them.

    It takes what ``find_violations`` takes.
    """
    suspects = suspicious(columns, settings, summaries)
    if not suspects:
        return Rejected(0, ())
    broken = " OR ".join(
        breaks(f"v{position}", settings.types.get(column), settings, dialect)
        for position, column in enumerate(suspects)
    )
    values = f"({_values(relation, suspects, row_number, settings, dialect)}) WHERE {broken}"
    count = run(f"SELECT count(*) FROM {values}")[0][0]
    first = run(f"SELECT r FROM {values} ORDER BY r LIMIT {shown}") if count else []
    return Rejected(count, tuple(row[0] for row in first))


def suspicious(columns: Sequence[str], settings: TypingSettings, summaries: Mapping[str, ColumnSummary]) -> list[str]:
    """The columns that may hold a value which breaks the contract."""
    return [
        column
        for column in columns
        if summaries[column].count
        and (column not in settings.types or not _clears(summaries[column], settings.types[column], settings))
    ]


def breaks(value: str, declared: ColumnType | None, settings: TypingSettings, dialect: SqlDialect) -> str:
    """Whether a value breaks the contract, as SQL: true or false for every value, false for NULL."""
    if declared is None:
        return f"{value} IS NOT NULL"
    return f"({value} IS NOT NULL AND NOT {fits(value, declared, settings, dialect)})"


def _clears(summary: ColumnSummary, declared: ColumnType, settings: TypingSettings) -> bool:
    # A summary may clear d/m/y dates by what other values decide; a contract judges each value by itself.
    if declared.name == "date" and summary.family == "day_month" and settings.order is None:
        return summary.day_is_month
    return summary.fits(declared, settings)


def _values(
    relation: str, columns: Sequence[str], row_number: str, settings: TypingSettings, dialect: SqlDialect
) -> str:
    values = [
        f"{null_trim(dialect.identifier(column), settings, dialect=dialect)} AS v{position}"
        for position, column in enumerate(columns)
    ]
    return f"SELECT {dialect.identifier(row_number)} AS r, {', '.join(values)} FROM {relation}"
