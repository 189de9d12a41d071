"""The hash that finds equal rows.

It covers the names and canonical values of a row's non-null columns, in the order of the names' code points, all joined
by U+001F: ``name value name value …``. The hash is the first 8 bytes of the MD5 of that text's UTF-8, as a big-endian
two's complement integer. A null contributes nothing, so a new column changes no hash. Equal rows have equal hashes; the
opposite is left to whoever compares the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from airflow_lake_provider.medallion.types.dialects import DUCKDB, SqlDialect

SEPARATOR: Final = "\x1f"


def row_hash(values: Mapping[str, str | None]) -> int:
    """The hash of a row given as column name → canonical text, None for null."""
    parts = [part for name, value in sorted(values.items()) if value is not None for part in (name, value)]
    digest = hashlib.md5(SEPARATOR.join(parts).encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def row_hash_sql(columns: Iterable[tuple[str, str]], dialect: SqlDialect = DUCKDB) -> str:
    """The hash as a SQL expression of type BIGINT, from pairs of column name and SQL of its canonical text."""
    return dialect.hash64(row_text_sql(columns, dialect))


def row_text_sql(columns: Iterable[tuple[str, str]], dialect: SqlDialect = DUCKDB) -> str:
    """The text that is hashed, or the part of it that these columns make, empty where all are null."""
    parts = [
        f"CASE WHEN {value} IS NOT NULL THEN {dialect.literal(name)} END, {value}" for name, value in sorted(columns)
    ]
    return f"concat_ws({dialect.literal(SEPARATOR)}, {', '.join(parts)})" if parts else "''"


def joined_hash_sql(texts: Iterable[str], dialect: SqlDialect = DUCKDB) -> str:
    """The hash from SQL of the parts of its text, which are in the order of the names."""
    parts = ", ".join(f"nullif({text}, '')" for text in texts)
    return dialect.hash64(f"concat_ws({dialect.literal(SEPARATOR)}, {parts})")
