"""Columns that are text for the sake of a few values, and the one setting that would change it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from airflow_lake_provider.medallion.types.dialects import DUCKDB, SqlDialect
from airflow_lake_provider.medallion.types.measure import Run, family_code, summarize
from airflow_lake_provider.medallion.types.model import FAMILIES, ColumnSummary, ColumnType, DateOrder, Family, join
from airflow_lake_provider.medallion.types.settings import DEFAULT_TYPING, TypingSettings
from airflow_lake_provider.medallion.types.sql import null_trim

_FEW: Final = 0.1
"""The largest share of a column's values that is still an exception."""

_SHOWN: Final = 5
_LONGEST_NULL_TOKEN: Final = 16
_NO_TYPE: Final = ("string", "unknown")


@dataclass(frozen=True, slots=True)
class AlmostTyped:
    """A text column that would be of ``type`` but for a few values, or but for one setting.

    ``exceptions`` are the most frequent values in the way, as distinct texts with their counts, ``exception_count`` is
    the number of all of them; there are none where a setting alone is missing. ``setting`` is the ``key=value`` that
    would give the column its type, with `` or `` between two that would, None where no single one does.
    """

    column: str
    type: ColumnType
    exceptions: tuple[tuple[str, int], ...]
    setting: str | None
    exception_count: int = 0


def almost_typed(
    run: Run,
    relation: str,
    columns: Sequence[str],
    settings: TypingSettings = DEFAULT_TYPING,
    *,
    dialect: SqlDialect = DUCKDB,
) -> list[AlmostTyped]:
    """The text columns of ``relation`` that are nearly of a type, in the order of ``columns``.

    The exceptions are texts of cells: they are for the user who asked about the file, never for a log.
    """
    summaries = summarize(run, relation, columns, settings, dialect=dialect)
    text = {name: summaries[name] for name in columns if join(summaries[name], settings).name == "string"}
    found: dict[str, AlmostTyped] = {}
    for name, summary in text.items():
        if doubt := _undecided(name, summary, settings):
            found[name] = doubt
    comma = replace(settings, decimal_comma=not settings.decimal_comma)
    written = [name for name in text if name not in found]
    for name, summary in summarize(run, relation, written, comma, dialect=dialect).items():
        if (kind := join(summary, comma)).name not in _NO_TYPE:
            found[name] = AlmostTyped(name, kind, (), f"decimal_comma={str(comma.decimal_comma).lower()}")
    for name in written:
        if name not in found and (doubt := _exceptional(run, relation, name, settings, dialect)):
            found[name] = doubt
    return [found[name] for name in text if name in found]


def _undecided(name: str, summary: ColumnSummary, settings: TypingSettings) -> AlmostTyped | None:
    both: tuple[DateOrder, DateOrder] = ("dmy", "mdy")
    orders = [
        order
        for order in both
        if join(summary, replace(settings, date_order=order, file_date_order=None)).name == "date"
    ]
    if not orders:
        return None
    return AlmostTyped(name, ColumnType("date"), (), " or ".join(f"date_order={order}" for order in orders))


def _exceptional(
    run: Run, relation: str, name: str, settings: TypingSettings, dialect: SqlDialect
) -> AlmostTyped | None:
    value = null_trim(dialect.identifier(name), settings, dialect=dialect)
    values = f"SELECT v, {family_code('v', settings, dialect)} AS t FROM (SELECT {value} AS v FROM {relation})"
    counts: dict[Family, int] = {
        FAMILIES[code]: count
        for code, count in run(f"SELECT t, count(*) FROM ({values}) WHERE t IS NOT NULL GROUP BY t")
    }
    family = max(counts, key=lambda key: counts[key])
    others = sum(counts.values()) - counts[family]
    if family == "text" or not 0 < others <= _FEW * sum(counts.values()):
        return None
    code = FAMILIES.index(family)
    typical = summarize(run, f"(SELECT v FROM ({values}) WHERE t = {code})", ["v"], settings, dialect=dialect)["v"]
    if (kind := join(typical, settings)).name in _NO_TYPE:
        return None
    rows = run(
        f"SELECT v, count(*) FROM ({values}) WHERE t <> {code} GROUP BY v ORDER BY count(*) DESC, v LIMIT {_SHOWN + 1}"
    )
    exceptions = tuple((text, count) for text, count in rows[:_SHOWN])
    tokens = [text for text, _ in exceptions] if len(rows) <= _SHOWN else []
    return AlmostTyped(name, kind, exceptions, _null_tokens(tokens, settings), others)


def _null_tokens(texts: Sequence[str], settings: TypingSettings) -> str | None:
    """The setting that makes these texts null, if they look like nothing else."""
    if not texts or any(len(text) > _LONGEST_NULL_TOKEN or any(map(str.isdigit, text)) for text in texts):
        return None
    tokens = sorted({*settings.null_tokens, *texts})
    plain = all(token.isprintable() and not set(token) & set(',\\"[') for token in tokens)
    return f"null_tokens={','.join(tokens) if plain else json.dumps(tokens, ensure_ascii=False)}"
