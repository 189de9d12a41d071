"""The query for typed rows and their hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_lake_provider.medallion.types.contract import breaks
from airflow_lake_provider.medallion.types.dialects import DUCKDB, SqlDialect
from airflow_lake_provider.medallion.types.model import ColumnSummary, ColumnType
from airflow_lake_provider.medallion.types.row_hash import row_hash_sql, row_text_sql
from airflow_lake_provider.medallion.types.settings import DEFAULT_TYPING, TypingSettings
from airflow_lake_provider.medallion.types.sql import canonical, null_trim, typed_canonical

_GUARDED_COLUMNS = 256
"""Beyond it, planning a query costs more than running it saves."""


def typed_query(
    relation: str,
    columns: Mapping[str, ColumnType],
    settings: TypingSettings = DEFAULT_TYPING,
    *,
    keep: Sequence[str] = (),
    summaries: Mapping[str, ColumnSummary] | None = None,
    only_fitting: bool = False,
    undeclared: Sequence[str] = (),
    as_text: bool = False,
    dialect: SqlDialect = DUCKDB,
) -> str:
    """A query for the typed rows of ``relation``, whose columns are text.

    It gives the columns of ``keep`` as they are, each of ``columns`` as its type, and ``_row_hash``. The
    ``summaries`` of the rows, where they are known, make it quicker. Every value must fit its type, unless
    ``only_fitting`` leaves out the rows with a value that does not, or with one in an ``undeclared`` column.
    ``as_text`` gives ``_row_text``, the text that is hashed, in place of the hash: for some of a row's columns, in the
    order of their names.
    """
    identifier = dialect.identifier
    kept = [identifier(name) for name in keep]
    known = summaries or {}
    names = {name: f"v{position}" for position, name in enumerate(columns)}
    extra = {name: f"u{position}" for position, name in enumerate(undeclared)} if only_fitting else {}
    guarded = len(names) + len(extra) <= _GUARDED_COLUMNS
    trimmed = [
        null_trim(
            identifier(name),
            settings,
            plain=name in known and known[name].plain,
            guarded=guarded,
            dialect=dialect,
        )
        + f" AS {value}"
        for name, value in (names | extra).items()
    ]
    rows = f"SELECT {', '.join([*kept, *trimmed])} FROM {relation}"
    if only_fitting:
        broken = [breaks(value, columns.get(name), settings, dialect) for name, value in (names | extra).items()]
        rows = f"SELECT * FROM ({rows}) WHERE NOT ({' OR '.join(broken) or 'false'})"
    # A level of its own: the canonical text is used for the value, and twice in the hash.
    texts = [
        f"{canonical(value, columns[name], settings, known.get(name), dialect)} AS k{value}"
        for name, value in names.items()
    ]
    if texts:
        rows = f"SELECT *, {', '.join(texts)} FROM ({rows})"
    values = [
        f"{typed_canonical(f'k{value}', columns[name], dialect)} AS {identifier(name)}" for name, value in names.items()
    ]
    pairs = [(name, f"k{value}") for name, value in names.items()]
    hashed = (
        f"{row_text_sql(pairs, dialect)} AS _row_text" if as_text else f"{row_hash_sql(pairs, dialect)} AS _row_hash"
    )
    return f"SELECT {', '.join([*kept, *values, hashed])} FROM ({rows})"
