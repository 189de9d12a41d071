"""Summaries of columns of text, computed by SQL.

``summary_query`` classifies every value of every column with one query, whatever the number of columns. ``summarize``
does that for a sample, which leaves one possible shape per column, and then only verifies that shape on all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from airflow_lake_provider.medallion.types.dialects import DUCKDB, SqlDialect
from airflow_lake_provider.medallion.types.model import FAMILIES, ColumnSummary, Family
from airflow_lake_provider.medallion.types.patterns import DAY_IS_MONTH, DAY_MONTH, INTEGER
from airflow_lake_provider.medallion.types.settings import DEFAULT_TYPING, TypingSettings
from airflow_lake_provider.medallion.types.sql import NumberParts, decimal_sign, in_family, null_trim

Run = Callable[[str], Sequence[Sequence[Any]]]
"""Runs a query and gives its rows."""

_SAMPLE_VALUES: Final = 2_000_000
_SAMPLE_ROWS: Final = (1_024, 4_096)
_COLUMNS_AT_ONCE: Final = 256
"""More are measured in several queries, since the memory of a query grows with its columns."""

_COLUMNS_PER_QUERY: Final = 64
_CODES: Final[Mapping[Family, int]] = {family: code for code, family in enumerate(FAMILIES)}


def summarize(
    run: Run,
    relation: str,
    columns: Sequence[str],
    settings: TypingSettings = DEFAULT_TYPING,
    *,
    dialect: SqlDialect = DUCKDB,
) -> dict[str, ColumnSummary]:
    """The summaries of text columns of ``relation`` (SQL that may follow FROM), as if each value had been looked at
    alone.

    It reads the relation once, and those columns again whose later values are of another shape than the first ones.
    """
    if not columns:
        return {}
    if len(columns) > _COLUMNS_AT_ONCE:
        return {
            column: summary
            for chunk in _chunks(columns)
            for column, summary in summarize(run, relation, chunk, settings, dialect=dialect).items()
        }
    sample_rows = min(max(_SAMPLE_VALUES // len(columns), _SAMPLE_ROWS[0]), _SAMPLE_ROWS[1])
    rows = run(summary_query(relation, columns, settings, limit=sample_rows, dialect=dialect))
    sample = read_summaries(rows, columns, settings)
    if _row_count(rows, len(columns)) < sample_rows:
        return sample
    attempts = {column: _first_attempt(summary, settings) for column, summary in sample.items()}
    result: dict[str, ColumnSummary] = {}
    while attempts:
        names = list(attempts)
        for start in range(0, len(names), _COLUMNS_PER_QUERY):
            chunk = {name: attempts[name] for name in names[start : start + _COLUMNS_PER_QUERY]}
            for name, outcome in _verify(run, relation, chunk, settings, dialect).items():
                if isinstance(outcome, ColumnSummary):
                    result[name] = outcome
                    del attempts[name]
                else:
                    attempts[name] = outcome
    return {column: result[column] for column in columns}


def summarize_by_file(
    run: Run,
    relation: str,
    columns: Sequence[str],
    settings: TypingSettings = DEFAULT_TYPING,
    *,
    file_column: str = "_file_id",
    dialect: SqlDialect = DUCKDB,
) -> dict[str, dict[str, ColumnSummary]]:
    """File → column → summary, for a relation that holds the rows of many small files, with one query.

    A file without a single non-null field is absent; the others have a summary for every one of ``columns``.
    """
    if not columns:
        return {}
    if len(columns) > _COLUMNS_AT_ONCE:
        return _by_file_in_chunks(run, relation, columns, settings, file_column, dialect)
    rows = run(summary_query(relation, columns, settings, file_column=file_column, dialect=dialect))
    by_file: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        by_file.setdefault(row[0], []).append(row[1:])
    return {file: read_summaries(own, columns, settings) for file, own in by_file.items()}


def _by_file_in_chunks(
    run: Run, relation: str, columns: Sequence[str], settings: TypingSettings, file_column: str, dialect: SqlDialect
) -> dict[str, dict[str, ColumnSummary]]:
    found: dict[str, dict[str, ColumnSummary]] = {}
    for chunk in _chunks(columns):
        part = summarize_by_file(run, relation, chunk, settings, file_column=file_column, dialect=dialect)
        for file, summaries in part.items():
            found.setdefault(file, {}).update(summaries)
    return {
        file: {column: summaries.get(column, ColumnSummary()) for column in columns}
        for file, summaries in found.items()
    }


def _chunks(columns: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(columns), _COLUMNS_AT_ONCE):
        yield columns[start : start + _COLUMNS_AT_ONCE]


def summary_query(
    relation: str,
    columns: Sequence[str],
    settings: TypingSettings = DEFAULT_TYPING,
    *,
    file_column: str | None = None,
    limit: int | None = None,
    dialect: SqlDialect = DUCKDB,
) -> str:
    """One query that summarizes all ``columns``, as rows for ``read_summaries``.

    With ``file_column`` each row is preceded by the file it is about; ``limit`` takes only so many rows of the
    relation.
    """
    names = [f"c{position}" for position in range(len(columns))]
    renamed = [f"{dialect.identifier(column)} AS {name}" for name, column in zip(names, columns, strict=True)]
    file = ""
    if file_column is not None:
        file = "f, "
        renamed.append(f"{dialect.identifier(file_column)} AS f")
    if limit is not None:
        # Counts the rows, blank ones included, since UNPIVOT drops nulls.
        renamed.append("'1' AS r")
        names.append("r")
    inner = f"SELECT {', '.join(renamed)} FROM {relation}" + (f" LIMIT {limit}" if limit is not None else "")
    # UNPIVOT keeps the size of the query's plan in proportion to the columns where an expression for each column
    # explodes.
    fields = f"SELECT {file}n, x FROM ({inner}) UNPIVOT (x FOR n IN ({', '.join(names)}))"
    values = f"SELECT {file}n, x, {null_trim('x', settings, dialect=dialect)} AS v FROM ({fields})"
    classified = f"SELECT *, {family_code('v', settings, dialect)} AS t FROM ({values})"
    number = f"CASE WHEN t = {_CODES['number']} THEN v END AS m"
    day_month = f"CASE WHEN t = {_CODES['day_month']} THEN v END AS d"
    split = f"SELECT *, {number}, {day_month} FROM ({classified})"
    measured = _number_levels(["m"], split, settings, dialect)
    aggregates = [
        "count(v)",
        "min(t)",
        "max(t)",
        _plain("x", "v"),
        *_number_aggregates("m"),
        *_day_month_aggregates("d", dialect),
    ]
    return f"SELECT {file}n, {', '.join(aggregates)} FROM ({measured}) GROUP BY {file}n"


def read_summaries(
    rows: Iterable[Sequence[Any]], columns: Sequence[str], settings: TypingSettings = DEFAULT_TYPING
) -> dict[str, ColumnSummary]:
    """The summaries that the rows of ``summary_query`` hold, one for each of ``columns`` and in their order."""
    found: dict[str, ColumnSummary] = {}
    for name, count, lowest, highest, plain, *measures in rows:
        if not name.startswith("c"):
            continue
        if count == 0:
            summary = ColumnSummary(plain=plain)
        elif (lowest, highest) == (_CODES["date"], _CODES["stated_date"]):
            summary = ColumnSummary(count=count, family="date", plain=plain)
        elif lowest != highest:
            summary = ColumnSummary.text(count, plain=plain)
        else:
            summary = _summary(FAMILIES[lowest], count, plain, measures)
        found[columns[int(name[1:])]] = summary
    return {column: found.get(column, ColumnSummary()) for column in columns}


def family_code(value: str, settings: TypingSettings = DEFAULT_TYPING, dialect: SqlDialect = DUCKDB) -> str:
    """The position in ``FAMILIES`` of the family of a value as a SQL expression, NULL for NULL."""
    dates: Family = "stated_date" if settings.file_date_order else "day_month"
    families: tuple[Family, ...] = ("number", "date", "timestamp", dates, "timestamptz")
    numeric = " ".join(
        f"WHEN {in_family(value, family, settings, dialect)} THEN {_CODES[family]}" for family in families
    )
    boolean = (
        f"CASE WHEN {in_family(value, 'boolean', settings, dialect)} THEN {_CODES['boolean']} ELSE {_CODES['text']} END"
    )
    return (
        f"CASE WHEN {value} IS NULL THEN NULL "
        # Everything but a boolean begins with a digit or a minus sign, and few texts do.
        f"WHEN {value} >= '-' AND {value} < ':' THEN CASE {numeric} ELSE {_CODES['text']} END "
        f"WHEN {dialect.byte_length(value)} <= 5 THEN {boolean} ELSE {_CODES['text']} END"
    )


def _row_count(rows: Iterable[Sequence[Any]], columns: int) -> int:
    return next((row[1] for row in rows if row[0] == "r"), 0)


def _number_levels(
    values: Sequence[str], query: str, settings: TypingSettings, dialect: SqlDialect, *, fractions: bool = True
) -> str:
    """``query`` with the measures of its columns of numbers beside each; levels, so that each is computed once."""

    def level(parts: Callable[[str], str], query: str) -> str:
        return f"SELECT *, {', '.join(map(parts, values))} FROM ({query})"

    def of(value: str) -> NumberParts:
        return NumberParts(value, f"{value}p", settings, dialect, fractions=fractions)

    if fractions:
        query = level(lambda v: f"{dialect.position(v, decimal_sign(settings))} AS {v}p", query)
    query = level(
        lambda v: f"{of(v).scale} AS {v}s, {of(v).integer_digits} AS {v}i, {of(v).beyond_64_bits()} AS {v}b", query
    )
    if fractions:
        query = level(
            lambda v: f"{of(v).significant_digits(f'{v}i', f'{v}s')} AS {v}g, {of(v).has_fraction} AS {v}f", query
        )
    return query


def _number_aggregates(value: str, *, fractions: bool = True) -> list[str]:
    always = [f"bool_or({value}b)", f"max({value}i)"]
    if not fractions:
        return ["false", *always, "0", f"max({value}i)"]
    return [f"bool_or({value}f)", *always, f"max({value}s)", f"max({value}g)"]


def _day_month_aggregates(value: str, dialect: SqlDialect) -> list[str]:
    patterns = (DAY_MONTH["dmy"], DAY_MONTH["mdy"], DAY_IS_MONTH)
    separator = f"substr({value}, -5, 1)"
    return [
        *(f"bool_and({dialect.matches(value, pattern)})" for pattern in patterns),
        f"min({separator})",
        f"max({separator})",
    ]


def _summary(family: Family, count: int, plain: bool, measures: Sequence[Any]) -> ColumnSummary:
    """A summary from the measures of numbers and those of d/m/y dates, as the two functions above give them."""
    fractions, beyond, integer_digits, scale, significant, day_first, month_first, same, low, high = measures
    summary = ColumnSummary(count=count, family=family, plain=plain)
    match family:
        case "text":
            return ColumnSummary.text(count, plain=plain)
        case "number":
            return replace(
                summary,
                fractions=fractions,
                beyond_64_bits=beyond,
                integer_digits=integer_digits,
                scale=scale,
                significant_digits=significant,
            )
        case "day_month":
            if low != high:
                return ColumnSummary.text(count, plain=plain)
            return replace(summary, day_first=day_first, month_first=month_first, day_is_month=same, separator=low)
        case _:
            return summary


_Shape = Literal["integer", "unseen"] | Family


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What a column may be: one shape, with fields as they stand or only once they are trimmed."""

    shape: _Shape
    trimmed: bool = False

    @property
    def family(self) -> Family | None:
        """The family that the values are in if the attempt holds."""
        match self.shape:
            case "integer":
                return "number"
            case "unseen":
                return None
            case family:
                return family

    def after_failure(self) -> _Attempt:
        if self.shape == "integer":
            return _Attempt("number", self.trimmed)
        return _Attempt("text") if self.trimmed else _Attempt(self.shape, trimmed=True)


def _first_attempt(sample: ColumnSummary, settings: TypingSettings) -> _Attempt:
    match sample.family:
        case None:
            return _Attempt("unseen")
        case "text":
            return _Attempt("text")
        case "number" if not sample.fractions:
            return _Attempt("integer", not sample.plain)
        case "date" if settings.file_date_order:
            return _Attempt("stated_date", not sample.plain)
        case family:
            return _Attempt(family, not sample.plain)


def _verify(
    run: Run, relation: str, attempts: Mapping[str, _Attempt], settings: TypingSettings, dialect: SqlDialect
) -> dict[str, ColumnSummary | _Attempt]:
    """One attempt for each column, all in one query: its summary where the attempt holds, else what to try next."""
    fields: list[str] = []
    matched: list[str] = []
    aggregates: list[str] = []
    numbers: dict[bool, list[str]] = {True: [], False: []}
    for position, (column, attempt) in enumerate(attempts.items()):
        x, m = f"x{position}", f"m{position}"
        field = dialect.identifier(column)
        own: list[str] = []
        match attempt.shape:
            case "text":
                fields.append(f"{field} AS {x}")
                matched.append(f"{null_trim(x, settings, dialect=dialect)} AS {m}")
                own = [f"count({m})", _plain(x, m)]
            case "unseen":
                fields.append(f"{field} AS {x}")
                matched.append(f"{null_trim(x, settings, dialect=dialect)} AS {m}")
                own = [f"count(nullif({x}, ''))", f"count({m})", family_code(f"min({m})", settings, dialect)]
            case shape:
                trimmed = null_trim(field, settings, dialect=dialect) if attempt.trimmed else field
                fields.append(f"{trimmed} AS {x}")
                matched.append(f"CASE WHEN {_has_shape(x, attempt, settings, dialect)} THEN {x} END AS {m}")
                own = [f"count(nullif({x}, ''))", f"count({m})"]
                if shape in ("integer", "number"):
                    numbers[shape == "number"].append(m)
                    own += _number_aggregates(m, fractions=shape == "number")
                elif shape == "day_month":
                    own += _day_month_aggregates(m, dialect)
                elif shape == "stated_date":
                    own.append(f"bool_or({in_family(m, 'date', settings, dialect)})")
        aggregates += own
    query = f"SELECT {', '.join(fields)} FROM {relation}"
    if matched:
        query = f"SELECT *, {', '.join(matched)} FROM ({query})"
    for fractions, values in numbers.items():
        if values:
            query = _number_levels(values, query, settings, dialect, fractions=fractions)
    values_of = iter(run(f"SELECT {', '.join(aggregates)} FROM ({query})")[0])
    return {column: _outcome(attempt, values_of) for column, attempt in attempts.items()}


def _plain(field: str, value: str) -> str:
    """Whether every field is its trimmed text or empty, as an aggregate."""
    return f"coalesce(bool_and({field} = coalesce({value}, '')), true)"


def _has_shape(value: str, attempt: _Attempt, settings: TypingSettings, dialect: SqlDialect) -> str:
    if attempt.shape == "integer":
        matches = dialect.matches(value, INTEGER)
    else:
        assert attempt.family is not None
        matches = in_family(value, attempt.family, settings, dialect)
        if attempt.family == "stated_date":
            matches = f"({in_family(value, 'date', settings, dialect)} OR {matches})"
    if attempt.trimmed or not settings.null_tokens:
        return matches
    nulls = ", ".join(map(dialect.literal, sorted(settings.null_tokens)))
    return f"{value} NOT IN ({nulls}) AND {matches}"


_NUMBER_MEASURES: Final = 5
_DAY_MONTH_MEASURES: Final = 5


def _outcome(attempt: _Attempt, values: Iterator[Any]) -> ColumnSummary | _Attempt:
    """Takes the aggregates of one column off ``values`` and judges its attempt."""
    present = next(values)
    if attempt.shape == "text":
        return ColumnSummary.text(present, plain=next(values))
    matched = next(values)
    if attempt.shape == "unseen":
        code = next(values)
        return ColumnSummary(plain=present == 0) if matched == 0 else _Attempt(FAMILIES[code])
    numbers = attempt.family == "number"
    measures = [next(values) for _ in range(_NUMBER_MEASURES)] if numbers else [None] * _NUMBER_MEASURES
    if attempt.family == "day_month":
        measures += [next(values) for _ in range(_DAY_MONTH_MEASURES)]
    else:
        measures += [None] * _DAY_MONTH_MEASURES
    family = attempt.family
    if family == "stated_date" and next(values):
        family = "date"
    if matched != present:
        return attempt.after_failure()
    if matched == 0 or family is None:
        return ColumnSummary(plain=not attempt.trimmed)
    return _summary(family, matched, not attempt.trimmed, measures)
