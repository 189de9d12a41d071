"""Small data files put together, so that what one more file costs does not grow with the number of those before.

Gold is looked through for equal rows at every commit, and each data file in it takes a moment, however small it is. So
where sixteen of about the same number of rows have come together, the next commit makes one of them, of the next size:
a row is written three or four times in the life of a table, never once more for each file that comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from airflow_lake_provider.errors import RecordsDisagree
from airflow_lake_provider.medallion.embedded.parquet import copy_query, local_path, quote
from airflow_lake_provider.medallion.embedded.relations import table_relation

MERGED_TOGETHER = 16
# What is larger stays as it is: to take a file's rows out of it must not cost much more than that file.
SMALL_BYTES = 1 << 20


def to_merge(files: Sequence[DataFile]) -> list[DataFile]:
    """The data files that should become one, in the order given; none where there are not enough of one size."""
    by_size: dict[int, list[DataFile]] = {}
    for data_file in files:
        if data_file.file_size_in_bytes < SMALL_BYTES:
            by_size.setdefault(_magnitude(data_file.record_count), []).append(data_file)
    return next((group for _, group in sorted(by_size.items()) if len(group) >= MERGED_TOGETHER), [])


def write_merged(
    connection: duckdb.DuckDBPyConnection, files: Sequence[DataFile], path: Path, schema: Schema
) -> pq.FileMetaData:
    """Write the rows of these data files to one, in their order; gives its footer."""
    columns = ", ".join(quote(field.name) for field in schema.fields)
    relation = table_relation([local_path(f.file_path) for f in files], schema)
    rows = sum(f.record_count for f in files)
    footer = copy_query(connection, f"SELECT {columns} FROM {relation}", path, schema, expected_rows=rows)
    if footer is None or footer.num_rows != rows:
        written = 0 if footer is None else footer.num_rows
        raise RecordsDisagree(
            f"{len(files)} data files have {rows} rows, but {written} were written when they were put together; the "
            "table stays as it is."
        )
    return footer


def _magnitude(rows: int) -> int:
    return max(rows.bit_length() - 1, 0) // (MERGED_TOGETHER.bit_length() - 1)
