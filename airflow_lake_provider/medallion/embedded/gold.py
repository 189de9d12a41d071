"""Rows that are already there: duplicates within a file for silver, and over all files for gold.

A stored hash finds the candidates, so that from the rest of the dataset only one narrow column is read; equality of
all values decides. A file without any candidate keeps the data file that it has: its bytes are copied, not computed
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from airflow_lake_provider.medallion.embedded.layout import data_columns
from airflow_lake_provider.medallion.embedded.parquet import copy_file, copy_query, new_data_path, quote
from airflow_lake_provider.medallion.embedded.relations import table_relation

# So many 8-byte hashes are sorted at once; for more, DuckDB groups them and spills.
_SORTED_IN_MEMORY = 20_000_000


@dataclass(slots=True)
class Part:
    """One data file that was written: its rows belong to ``file_ids``."""

    path: Path
    footer: pq.FileMetaData
    file_ids: tuple[str, ...]

    @property
    def rows(self) -> int:
        return int(self.footer.num_rows)


def drop_repeats(
    connection: duckdb.DuckDBPyConnection, parts: Sequence[Part], schema: Schema, data_location: str
) -> list[Part]:
    """Silver without the rows that equal an earlier row of the same file in all data columns.

    ``parts`` hold all rows of the files that they have. A part that loses rows is written anew and its old file
    deleted.
    """
    if _all_hashes_differ(parts):
        return list(parts)
    relation = table_relation([part.path for part in parts], schema)
    hashes = table_relation([part.path for part in parts], schema, ("_file_id", "_row_hash"))
    columns = "".join(f", {quote(field.name)}" for field in data_columns(schema))
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE candidates AS "
        f"SELECT _file_id, _row_hash FROM {hashes} GROUP BY ALL HAVING count(*) > 1"
    )
    if not _count(connection, "candidates"):
        return list(parts)
    rows = f"(SELECT * FROM {relation} SEMI JOIN candidates USING (_file_id, _row_hash))"
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE dropped AS "
        f"SELECT _file_id, _row_number FROM {rows} ANTI JOIN "
        f"(SELECT _file_id, min(_row_number) AS _row_number FROM {rows} GROUP BY _file_id{columns}) "
        "USING (_file_id, _row_number)"
    )
    return _without_dropped(connection, parts, schema, schema, data_location, in_place=True)


def _all_hashes_differ(parts: Sequence[Part]) -> bool:
    """A quick look at the hashes of all rows, which spares most files the grouping; False where in doubt."""
    if sum(part.rows for part in parts) > _SORTED_IN_MEMORY:
        return False
    columns = [pq.read_table(part.path, columns=["_row_hash"])["_row_hash"].to_numpy() for part in parts]
    hashes = np.sort(np.concatenate(columns))
    return not bool((hashes[1:] == hashes[:-1]).any())


def distinct_over_files(
    connection: duckdb.DuckDBPyConnection,
    silver: Sequence[Part],
    silver_schema: Schema,
    gold: Sequence[Path],
    gold_schema: Schema,
    data_location: str,
    *,
    same_ids: bool,
) -> list[Part]:
    """Gold's new data files: the rows of ``silver`` that are not in ``gold`` yet, each kept for the first file that
    has it.

    ``same_ids`` says that both tables know each column by the same field id, so that bytes may be copied.
    """
    paths = [part.path for part in silver]
    hashes = table_relation(paths, silver_schema, ("_file_id", "_row_hash"))
    known = table_relation(gold, gold_schema, ("_row_hash",))
    queries = []
    if gold:
        # DuckDB keeps the right side of the join in memory: the new rows, not the table.
        queries.append(f"SELECT DISTINCT _row_hash FROM {known} SEMI JOIN {hashes} USING (_row_hash)")
    if sum(len(part.file_ids) for part in silver) > 1 and not _all_hashes_differ(silver):
        queries.append(f"SELECT _row_hash FROM {hashes} GROUP BY _row_hash HAVING count(*) > 1")
    if queries:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE candidates AS {' UNION '.join(queries)}")
    if not queries or not _count(connection, "candidates"):
        connection.execute("CREATE OR REPLACE TEMP TABLE dropped (_file_id VARCHAR, _row_number BIGINT)")
    else:
        _find_known(connection, paths, silver_schema, gold, gold_schema)
    return _without_dropped(
        connection, silver, silver_schema, gold_schema, data_location, in_place=False, copies=same_ids
    )


def _find_known(
    connection: duckdb.DuckDBPyConnection,
    silver: Sequence[Path],
    silver_schema: Schema,
    gold: Sequence[Path],
    gold_schema: Schema,
) -> None:
    """Fill ``dropped`` with the rows of silver that gold has, or that an earlier file or row brings."""
    names = [quote(field.name) for field in data_columns(silver_schema)]
    columns = "".join(f", {name}" for name in names)
    rows = f"(SELECT * FROM {table_relation(silver, silver_schema)} SEMI JOIN candidates USING (_row_hash))"
    first = (
        f"(SELECT _row_hash, min({{'f': _file_id, 'r': _row_number}}) AS owner{columns} FROM {rows} "
        f"GROUP BY _row_hash{columns})"
    )
    if gold:
        present = f"(SELECT * FROM {table_relation(gold, gold_schema)} SEMI JOIN candidates USING (_row_hash))"
        equal = "".join(f" AND a.{name} IS NOT DISTINCT FROM b.{name}" for name in names)
        first = f"(SELECT a.owner FROM {first} a ANTI JOIN {present} b ON a._row_hash = b._row_hash{equal})"
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE dropped AS "
        f"SELECT _file_id, _row_number FROM {rows} ANTI JOIN "
        f"(SELECT owner.f AS _file_id, owner.r AS _row_number FROM {first}) USING (_file_id, _row_number)"
    )


def _without_dropped(
    connection: duckdb.DuckDBPyConnection,
    parts: Sequence[Part],
    schema: Schema,
    target_schema: Schema,
    data_location: str,
    *,
    in_place: bool,
    copies: bool = False,
) -> list[Part]:
    """The parts without the rows of the table ``dropped``; ``in_place`` keeps a part that loses none as it is."""
    losing = dict(connection.execute("SELECT _file_id, count(*) FROM dropped GROUP BY _file_id").fetchall())
    columns = ", ".join(quote(field.name) for field in target_schema.fields)
    result = []
    for part in parts:
        lost = any(file_id in losing for file_id in part.file_ids)
        if not lost and in_place:
            result.append(part)
            continue
        path = new_data_path(data_location, part.file_ids[0])
        if not lost and copies and _has_no_other_columns(part.footer, schema):
            copy_file(part.path, path)
            result.append(Part(path, part.footer, part.file_ids))
            continue
        anti = " ANTI JOIN dropped USING (_file_id, _row_number)" if lost else ""
        footer = copy_query(
            connection,
            f"SELECT {columns} FROM {table_relation([part.path], schema)}{anti}",
            path,
            target_schema,
            expected_rows=part.rows,
        )
        if in_place:
            part.path.unlink()
        if footer is not None:
            result.append(Part(path, footer, part.file_ids))
    return result


def _has_no_other_columns(footer: pq.FileMetaData, schema: Schema) -> bool:
    """Whether the table still has every column of a data file; one that only a removed file brought is gone."""
    known = {(field.name, str(field.field_id)) for field in schema.fields}
    columns = {
        (f.name, (f.metadata or {}).get(b"PARQUET:field_id", b"").decode()) for f in footer.schema.to_arrow_schema()
    }
    return columns <= known


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(row[0]) if row else 0
