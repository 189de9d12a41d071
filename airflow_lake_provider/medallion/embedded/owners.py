"""Whose rows a data file holds, and taking a file's rows out of a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import duckdb
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import StringType

from airflow_lake_provider.medallion.embedded.gold import Part
from airflow_lake_provider.medallion.embedded.parquet import (
    copy_query,
    literal,
    local_path,
    new_data_path,
    paths_list,
    quote,
)
from airflow_lake_provider.medallion.embedded.relations import table_relation

_FILE_ID_FIELD = 1


@dataclass(slots=True)
class Held:
    """The data files that hold rows of some files: those that hold nothing else, and those that hold others' too."""

    alone: list[DataFile] = field(default_factory=list)
    mixed: list[DataFile] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.alone or self.mixed)

    @property
    def all(self) -> list[DataFile]:
        return [*self.alone, *self.mixed]


def sole_owner(data_file: DataFile) -> str | None:
    """The one file whose rows a data file holds, or None where it holds several (or does not say)."""
    low = (data_file.lower_bounds or {}).get(_FILE_ID_FIELD)
    high = (data_file.upper_bounds or {}).get(_FILE_ID_FIELD)
    if low is None or low != high:
        return None
    return str(from_bytes(StringType(), low))


def owners(connection: duckdb.DuckDBPyConnection, data_file: DataFile) -> tuple[str, ...]:
    """The files whose rows a data file holds, sorted; reads its ``_file_id`` column where the metrics do not tell."""
    owner = sole_owner(data_file)
    if owner is not None:
        return (owner,)
    path = paths_list([local_path(data_file.file_path)])
    found = connection.execute(f"SELECT DISTINCT _file_id FROM read_parquet({path}) ORDER BY 1").fetchall()
    return tuple(row[0] for row in found)


def held_by(connection: duckdb.DuckDBPyConnection, files: Sequence[DataFile], file_ids: Collection[str]) -> Held:
    """Which of a table's data files hold rows of ``file_ids``."""
    held = Held()
    for data_file in files if file_ids else ():
        who = owners(connection, data_file)
        if any(owner in file_ids for owner in who):
            (held.alone if all(owner in file_ids for owner in who) else held.mixed).append(data_file)
    return held


def rewrite_without(
    connection: duckdb.DuckDBPyConnection,
    held: Held,
    file_ids: Collection[str],
    schema: Schema,
    data_location: str,
) -> list[Part]:
    """New data files with the rows of others from data files that ``file_ids`` share with them, in the same order."""
    parts = []
    ids = ", ".join(literal(file_id) for file_id in sorted(file_ids))
    columns = ", ".join(quote(field.name) for field in schema.fields)
    for data_file in held.mixed:
        source = local_path(data_file.file_path)
        others = tuple(owner for owner in owners(connection, data_file) if owner not in file_ids)
        path = new_data_path(data_location, others[0])
        footer = copy_query(
            connection,
            f"SELECT {columns} FROM {table_relation([source], schema)} WHERE _file_id NOT IN ({ids})",
            path,
            schema,
            expected_rows=data_file.record_count,
        )
        if footer is not None:
            parts.append(Part(path, footer, others))
    return parts
