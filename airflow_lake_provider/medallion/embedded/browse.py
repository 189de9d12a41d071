"""The rows of a table in the order in which users see them, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType

from airflow_lake_provider.dataset import Layer
from airflow_lake_provider.medallion.embedded.layout import SYSTEM_COLUMNS, data_columns
from airflow_lake_provider.medallion.embedded.owners import owners
from airflow_lake_provider.medallion.embedded.parquet import literal, local_path, quote
from airflow_lake_provider.medallion.embedded.relations import display_order, table_relation
from airflow_lake_provider.medallion.embedded.tables import live_files

_BATCH_ROWS = 10_000
_SORTED_ROWS = 100_000


def by_file(
    connection: duckdb.DuckDBPyConnection,
    table: Table,
    layer: Layer,
    file_order: Sequence[str],
    *,
    system: bool,
    limit: int | None,
) -> Iterator[pa.RecordBatch]:
    """The rows of bronze or silver by file, in ``file_order``, and by row number.

    The data files of one file hold its rows in order and are read one after the other; only small files that share a
    data file are sorted.
    """
    schema = table.schema()
    names = ", ".join(_names(schema, layer, system=system))
    left = limit
    for paths, file_ids in _runs(connection, live_files(table), schema, file_order):
        if left == 0:
            return
        ids = ", ".join(map(literal, file_ids))
        query = f"SELECT {names} FROM {table_relation(paths, schema)} WHERE _file_id IN ({ids})"
        if len(file_ids) > 1:
            query += " ORDER BY _file_id, _row_number"
        result = connection.execute(query + ("" if left is None else f" LIMIT {left}"))
        for batch in result.to_arrow_reader(_BATCH_ROWS):
            left = None if left is None else left - batch.num_rows
            yield batch


def sorted_by_values(
    connection: duckdb.DuckDBPyConnection, table: Table, *, system: bool, limit: int | None
) -> Iterator[pa.RecordBatch]:
    """The rows of gold, sorted by the texts of their values."""
    schema = table.schema()
    relation = table_relation([local_path(f.file_path) for f in live_files(table)], schema)
    order = ", ".join(display_order(field) for field in data_columns(schema)) or "_file_id"
    result = connection.execute(
        f"SELECT {', '.join(_names(schema, 'gold', system=system))} FROM {relation} "
        f"ORDER BY {order}{'' if limit is None else f' LIMIT {limit}'}"
    )
    yield from result.to_arrow_reader(_BATCH_ROWS)


def _names(schema: Schema, layer: Layer, *, system: bool) -> list[str]:
    return [quote(field.name) for field in data_columns(schema)] + (list(SYSTEM_COLUMNS[layer]) if system else [])


def _runs(
    connection: duckdb.DuckDBPyConnection, files: Sequence[DataFile], schema: Schema, file_order: Sequence[str]
) -> list[tuple[list[Path], list[str]]]:
    """Data files to read together, with the files whose rows to take from them.

    Several in a row that share one small data file are read at once.
    """
    number = schema.find_field("_row_number").field_id
    by_owner: dict[str, list[DataFile]] = {}
    for data_file in sorted(files, key=lambda f: _first_row(f, number)):
        for owner in owners(connection, data_file):
            by_owner.setdefault(owner, []).append(data_file)
    known = set(file_order)
    order = [*file_order, *sorted(owner for owner in by_owner if owner not in known)]
    runs: list[tuple[list[Path], list[str]]] = []
    for file_id in order:
        held = by_owner.get(file_id, [])
        if not held:
            continue
        paths = [local_path(f.file_path) for f in held]
        small = len(held) == 1 and held[0].record_count <= _SORTED_ROWS
        if small and runs and runs[-1][0] == paths and runs[-1][1][-1] < file_id:
            runs[-1][1].append(file_id)
        else:
            runs.append((paths, [file_id]))
    return runs


def _first_row(data_file: DataFile, number: int) -> int:
    low = (data_file.lower_bounds or {}).get(number)
    return 0 if low is None else int(from_bytes(LongType(), low))
