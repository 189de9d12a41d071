"""Typing rows of thousands of columns: some columns at a time and some rows at a time, so that memory stays bounded.

DuckDB holds 2,048 values of every column of every step of a query at once, for each thread; with 5,000 columns that
is more than all the rest together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from airflow_lake_provider.medallion.embedded.parquet import BackgroundWriter, field_metadata
from airflow_lake_provider.medallion.types import ColumnSummary, ColumnType, TypingSettings, typed_query
from airflow_lake_provider.medallion.types.row_hash import joined_hash_sql

WIDE = 400
"""From so many columns on this way is taken."""

_COLUMNS_AT_ONCE = 128
_CELLS_AT_ONCE = 4_000_000
_SLICE = "wide_slice"
_TEXTS = "wide_texts"
_KEEP = ("_file_id", "_row_number")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the rows of some files are typed: those that have one and the same settings."""

    file_ids: tuple[str, ...]
    columns: Mapping[str, ColumnType]
    typing: TypingSettings
    summaries: Mapping[str, ColumnSummary]
    only_fitting: bool
    undeclared: tuple[str, ...]

    def query(self, relation: str) -> str:
        """The query that types all columns at once."""
        return typed_query(
            relation,
            self.columns,
            self.typing,
            keep=_KEEP,
            summaries=self.summaries,
            only_fitting=self.only_fitting,
            undeclared=self.undeclared,
        )


def write_wide(
    connection: duckdb.DuckDBPyConnection,
    sources: Sequence[Path],
    recipes: Sequence[Recipe],
    path: Path,
    schema: Schema,
) -> pq.FileMetaData | None:
    """Write the silver rows of bronze data files, in their order; None (and no file) where there are none."""
    writer: BackgroundWriter | None = None
    names = [field.name for field in schema.fields]
    try:
        for rows in _slices(sources, max(1, _CELLS_AT_ONCE // len(names))):
            typed = [table for recipe in recipes if (table := _typed(connection, rows, recipe)).num_rows]
            if not typed:
                continue
            table = pa.concat_tables(typed, promote_options="default") if len(typed) > 1 else typed[0]
            if len(typed) > 1:
                table = table.sort_by([("_file_id", "ascending"), ("_row_number", "ascending")])
            if writer is None:
                writer = BackgroundWriter(path, _arrow_schema(table.schema, schema))
            ordered = table.select(writer.schema.names).cast(writer.schema)
            for batch in ordered.combine_chunks().to_batches():
                writer.write(batch)
        return writer.close() if writer is not None else None
    except BaseException as error:
        if writer is not None:
            writer.__exit__(type(error), error, None)
        raise


def _slices(sources: Sequence[Path], rows: int) -> Iterator[pa.Table]:
    for source in sources:
        with pq.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=rows):
                table = pa.Table.from_batches([batch])
                position = table.schema.get_field_index("_file_id")
                yield table.set_column(position, "_file_id", table["_file_id"].cast(pa.string()))


def _typed(connection: duckdb.DuckDBPyConnection, rows: pa.Table, recipe: Recipe) -> pa.Table:
    rows = rows.filter(pc.is_in(rows["_file_id"], value_set=pa.array(recipe.file_ids)))
    if not rows.num_rows:
        return rows.select(_KEEP)
    if recipe.only_fitting:
        rows = rows.filter(pa.array(_fitting(connection, rows, recipe)))
    columns = sorted(recipe.columns.keys() & set(rows.schema.names))
    result = {name: rows[name] for name in _KEEP}
    texts = []
    for chunk in _chunks(columns):
        table = _run(
            connection,
            rows.select([*_KEEP, *chunk]),
            typed_query(
                _SLICE,
                {name: recipe.columns[name] for name in chunk},
                recipe.typing,
                summaries=recipe.summaries,
                as_text=True,
            ),
        )
        result.update(zip(chunk, table.columns, strict=False))
        texts.append(table["_row_text"])
    names = [f"t{n}" for n in range(len(texts))]
    connection.register(_TEXTS, pa.table(texts, names=names) if texts else rows.select(["_row_number"]))
    try:
        hashes = connection.execute(f"SELECT {joined_hash_sql(names or [chr(39) * 2])} AS h FROM {_TEXTS}")
        return pa.table({**result, "_row_hash": hashes.to_arrow_table()["h"]})
    finally:
        connection.unregister(_TEXTS)


def _fitting(
    connection: duckdb.DuckDBPyConnection, rows: pa.Table, recipe: Recipe
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows have no value that breaks the contract."""
    keep = np.ones(rows.num_rows, dtype=bool)
    place = pa.array(range(rows.num_rows), pa.int64())
    there = set(rows.schema.names)
    for chunk in _chunks([*recipe.columns, *recipe.undeclared]):
        present = [name for name in chunk if name in there]
        fitting = _run(
            connection,
            rows.select(present).append_column("_place", place),
            typed_query(
                _SLICE,
                {name: recipe.columns[name] for name in present if name in recipe.columns},
                recipe.typing,
                keep=("_place",),
                only_fitting=True,
                undeclared=[name for name in present if name not in recipe.columns],
            ),
        )
        found = np.zeros(rows.num_rows, dtype=bool)
        found[fitting["_place"].to_numpy()] = True
        keep &= found
    return keep


def _run(connection: duckdb.DuckDBPyConnection, rows: pa.Table, query: str) -> pa.Table:
    connection.register(_SLICE, rows)
    try:
        return connection.execute(query).to_arrow_table()
    finally:
        connection.unregister(_SLICE)


def _chunks(columns: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(columns), _COLUMNS_AT_ONCE):
        yield columns[start : start + _COLUMNS_AT_ONCE]


def _arrow_schema(found: pa.Schema, schema: Schema) -> pa.Schema:
    """The Arrow schema of a data file with the table's field ids, in the table's order."""
    types = {field.name: field.type for field in found}
    return pa.schema(
        [
            pa.field(field.name, types[field.name], metadata=field_metadata(field.field_id))
            for field in schema.fields
            if field.name in types
        ]
    )
