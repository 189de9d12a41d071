"""Looking at a file without taking it in: how it is written, what its columns would be, and what is in doubt."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.medallion.content import check_content
from airflow_lake_provider.medallion.dataset_settings import EffectiveSettings
from airflow_lake_provider.medallion.dialect import Dialect, Doubt
from airflow_lake_provider.medallion.embedded.parquet import BackgroundWriter, paths_list
from airflow_lake_provider.medallion.embedded.relations import connect
from airflow_lake_provider.medallion.reading import Limits, open_csv
from airflow_lake_provider.medallion.types import AlmostTyped, ColumnType, almost_typed, choose, summarize


@dataclass(frozen=True, slots=True)
class InspectedColumn:
    """A column as it would be: the header text it comes from, its name, its type, and how many values it has."""

    header: str | None
    name: str
    type: ColumnType
    values: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was decided about a file, what its columns would be by themselves, and what could have gone another way.

    ``almost`` are the text columns that all but a few values would make something else.
    """

    dialect: Dialect
    columns: tuple[InspectedColumn, ...]
    preamble: int
    records: int
    rescued: int
    doubts: tuple[Doubt, ...]
    almost: tuple[AlmostTyped, ...]


def inspect_file(
    path: Path,
    settings: EffectiveSettings,
    *,
    name: str,
    temp_dir: Path,
    limits: Limits,
    memory_limit: str,
    threads: int,
) -> Inspection:
    """Read the whole local file, in bounded memory, and say what it is; only ``temp_dir`` is written to.

    Raises UnreadableFile where it cannot be read without loss, StorageError where ``temp_dir`` cannot be used.
    """
    check_content(path, name)
    try:
        temp_dir.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=temp_dir, prefix="inspect-")
    except OSError as error:
        raise StorageError(
            f"No temporary folder could be made in {str(temp_dir)!r}: {error.strerror}; set LAKE_TEMP_DIR."
        ) from None
    with folder, open_csv(path, settings.read_options, name=name, limits=limits, temp_dir=folder.name) as source:
        rows = Path(folder.name, "rows.parquet")
        rescued = 0
        with BackgroundWriter(rows, pa.schema(list(source.schema)[: source.width])) as writer:
            for batch in source.batches():
                surplus = batch.column(source.width + 1)
                rescued += len(surplus) - surplus.null_count
                writer.write(batch.select(range(source.width)))
            writer.close()
        connection = connect(memory_limit=memory_limit, threads=threads, temp_dir=Path(folder.name))

        def run(sql: str) -> Sequence[Sequence[Any]]:
            return connection.execute(sql).fetchall()

        relation = f"read_parquet({paths_list([rows])})"
        summaries = summarize(run, relation, source.columns, settings.typing)
        headers: list[str | None] = [None] * source.width if source.header is None else [*source.header]
        columns = tuple(
            InspectedColumn(
                header,
                column,
                choose(summaries[column], settings.typing, settings.typing.types.get(column)),
                summaries[column].count,
            )
            for column, header in zip(source.columns, headers, strict=True)
        )
        almost = almost_typed(run, relation, [c.name for c in columns if c.type.name == "string"], settings.typing)
        connection.close()
        return Inspection(
            dialect=source.dialect,
            columns=columns,
            preamble=source.preamble,
            records=source.records,
            rescued=rescued,
            doubts=tuple(source.doubts),
            almost=tuple(almost),
        )
