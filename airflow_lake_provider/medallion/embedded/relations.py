"""SQL relations over data files, and the one DuckDB connection that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType, TimestamptzType

from airflow_lake_provider.medallion.embedded.layout import column_type
from airflow_lake_provider.medallion.embedded.parquet import literal, paths_list, quote

_OPTIONS = {
    # Nothing is fetched from anywhere while data is computed.
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


def connect(*, memory_limit: str, threads: int, temp_dir: Path) -> duckdb.DuckDBPyConnection:
    """A connection of its own: bounded memory, spilling to ``temp_dir``, rows in the order in which they are read.

    ``threads`` 0 means one per core.
    """
    temp_dir.mkdir(parents=True, exist_ok=True)
    options: dict[str, str | bool | int | float | list[str]] = {
        **_OPTIONS,
        "memory_limit": memory_limit,
        "temp_directory": str(temp_dir),
    }
    if threads:
        options["threads"] = threads
    connection = duckdb.connect(config=options)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET preserve_insertion_order = true")
    connection.execute("SET enable_progress_bar = false")
    # Which side of a join is probed decides the order of the rows; it is the side that is written first.
    connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
    return connection


def duckdb_type(field: NestedField) -> str:
    """The DuckDB type of a table's column."""
    match field.field_type:
        case ListType():
            return "VARCHAR[]"
        case LongType():
            return "BIGINT"
        case TimestamptzType():
            return "TIMESTAMPTZ"
        case StringType():
            return "VARCHAR"
        case other:
            return column_type(other).duckdb


def table_relation(paths: Sequence[Path], schema: Schema, columns: Sequence[str] | None = None) -> str:
    """Data files of a table as a relation with the table's columns, found by field id; absent ones are null.

    ``columns`` limits it to some of them. Without any file it is an empty relation.
    """
    fields = [field for field in schema.fields if columns is None or field.name in columns]
    if not paths:
        empty = ", ".join(f"NULL::{duckdb_type(field)} AS {quote(field.name)}" for field in fields)
        return f"(SELECT {empty} WHERE false)"
    entries = ", ".join(
        f"{field.field_id}: {{'name': {literal(field.name)}, 'type': '{duckdb_type(field)}', 'default_value': NULL}}"
        for field in fields
    )
    # In parentheses, since two table functions of one name in a query hide each other's columns.
    return f"(SELECT * FROM read_parquet({paths_list(paths)}, schema = MAP {{{entries}}}))"


def display_order(field: NestedField) -> str:
    """The ORDER BY term that sorts a column by the text that users see, null first."""
    text = f"CAST({quote(field.name)} AS VARCHAR)"
    if isinstance(field.field_type, DoubleType):
        text = f"regexp_replace({text}, '[.]0$', '')"
    return f"{text} NULLS FIRST"
