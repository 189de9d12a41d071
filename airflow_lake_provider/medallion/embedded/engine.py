"""The embedded engine: DuckDB computes, Arrow and DuckDB write Parquet, PyIceberg commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import duckdb
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from airflow_lake_provider.dataset import LAYERS, DatasetName, Layer
from airflow_lake_provider.errors import NotFound
from airflow_lake_provider.medallion.embedded.bronze import BronzeWriter
from airflow_lake_provider.medallion.embedded.browse import by_file, sorted_by_values
from airflow_lake_provider.medallion.embedded.layout import SYSTEM_COLUMNS, column_type, data_columns
from airflow_lake_provider.medallion.embedded.parquet import Uncommitted
from airflow_lake_provider.medallion.embedded.relations import connect
from airflow_lake_provider.medallion.embedded.storage import storage_reported
from airflow_lake_provider.medallion.embedded.summaries import admit
from airflow_lake_provider.medallion.embedded.tables import (
    TableChange,
    drop_tables,
    live_files,
    load,
)
from airflow_lake_provider.medallion.embedded.update import DatasetUpdate
from airflow_lake_provider.medallion.engine import (
    Fence,
    FileOutcome,
    FileWork,
    PresentFile,
    Progress,
    TableColumn,
)
from airflow_lake_provider.medallion.present import Present
from airflow_lake_provider.medallion.reading import Limits


class EmbeddedEngine:
    """Tables on local storage under any catalog that PyIceberg opens.

    ``memory_limit`` (DuckDB's spelling) bounds what is computed in memory, more is spilled to ``temp_dir``
    (a function is asked for it when it is needed);
    ``threads`` 0 means one per core. A file whose rows need more than ``target_file_bytes`` has several data files of
    about that size.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        temp_dir: Path | Callable[[], Path],
        limits: Limits,
        memory_limit: str = "512MB",
        threads: int = 0,
        target_file_bytes: int = 128_000_000,
    ) -> None:
        self._catalog = catalog
        self._temp_dir_given = temp_dir
        self._memory_limit = memory_limit
        self._threads = threads
        self._limits = limits
        self._target_file_bytes = target_file_bytes

    @cached_property
    def _temp_dir(self) -> Path:
        return self._temp_dir_given if isinstance(self._temp_dir_given, Path) else self._temp_dir_given()

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return connect(memory_limit=self._memory_limit, threads=self._threads, temp_dir=self._temp_dir)

    def close(self) -> None:
        """See Engine.close."""
        if "_connection" in self.__dict__:
            self._connection.close()
            del self.__dict__["_connection"]

    def ingest(
        self,
        dataset: DatasetName,
        present: Present,
        work: Sequence[FileWork],
        *,
        fence: Fence,
        progress: Progress,
    ) -> list[FileOutcome]:
        """See Engine.ingest."""
        with storage_reported(temp_dir=self._temp_dir), Uncommitted() as written:
            bronze = TableChange(self._catalog, dataset, "bronze")
            writer = BronzeWriter(
                bronze,
                limits=self._limits,
                temp_dir=self._temp_dir,
                target_file_bytes=self._target_file_bytes,
                progress=progress,
            )
            self._temp_dir.mkdir(parents=True, exist_ok=True)
            writer.read(work)
            outcomes = admit(self._connection, writer)
            ready = [outcome for outcome in outcomes.values() if outcome.status == "ready"]
            earlier = {item.file_id: item.earlier for item in work if item.earlier != "nothing"}
            if ready or earlier:
                settings = {item.file_id: item.settings for item in work}
                new = [PresentFile(o.file_id, o.columns, settings[o.file_id]) for o in ready]
                clean = {o.file_id for o in ready if earlier.get(o.file_id, "same") == "same"}
                update = self._update(dataset, present, new, written, fence, older_writers=bool(earlier))
                update.bronze(bronze, writer, set(earlier))
                update.silver(writer.units, set(earlier))
                update.gold(set(earlier), stale=any(file_id not in clean for file_id in earlier))
                if earlier:
                    update.sweep()
                update.tell(outcomes, progress)
        return [outcomes[item.file_id] for item in work]

    def take_out(self, dataset: DatasetName, present: Present, file_ids: Sequence[str], *, fence: Fence) -> None:
        """See Engine.take_out."""
        gone = set(file_ids)
        with storage_reported():
            bronze = TableChange(self._catalog, dataset, "bronze")
            if not present or not bronze.exists:
                drop_tables(self._catalog, dataset, fence)
                return
        with storage_reported(temp_dir=self._temp_dir), Uncommitted() as written:
            update = self._update(dataset, present, [], written, fence, older_writers=True)
            update.bronze(bronze, None, gone)
            update.silver([], gone)
            update.gold(gone, stale=True)
            update.sweep()

    def rebuild(self, dataset: DatasetName, present: Present, *, fence: Fence) -> dict[Layer, int]:
        """See Engine.rebuild."""
        with storage_reported(temp_dir=self._temp_dir), Uncommitted() as written:
            if load(self._catalog, dataset, "bronze") is None:
                raise NotFound(
                    f"Dataset {dataset} has no bronze table, from which silver and gold are computed: upload a file, "
                    "or read all its files again with `lake reprocess`."
                )
            update = self._update(dataset, present, [], written, fence)
            update.silver([], set(), anew=True)
            update.gold(set(), stale=True)
            return {layer: self.count(dataset, layer) for layer in LAYERS}

    def count(self, dataset: DatasetName, layer: Layer) -> int:
        """The number of rows in a layer; raises NotFound where there is no table."""
        return sum(data_file.record_count for data_file in live_files(self._table(dataset, layer)))

    def schema(self, dataset: DatasetName, layer: Layer) -> tuple[list[TableColumn], list[TableColumn]]:
        """See Engine.schema."""
        with storage_reported(temp_dir=self._temp_dir):
            schema = self._table(dataset, layer).schema()
        data = [TableColumn(f.name, str(column_type(f.field_type)), f.doc) for f in data_columns(schema)]
        kinds = {
            "_row_number": "bigint",
            "_row_hash": "bigint",
            "_ingested_at": "timestamptz",
            "_rescued": "list<string>",
        }
        return data, [TableColumn(name, kinds.get(name, "string"), None) for name in SYSTEM_COLUMNS[layer]]

    def rows(
        self, dataset: DatasetName, layer: Layer, *, file_order: Sequence[str], system: bool, limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        """See Engine.rows."""
        table = self._table(dataset, layer)
        # Sorting wide rows takes what several threads hold at once; one thread spills in time.
        with (
            storage_reported(temp_dir=self._temp_dir),
            connect(memory_limit=self._memory_limit, threads=1, temp_dir=self._temp_dir) as connection,
        ):
            if layer == "gold":
                yield from sorted_by_values(connection, table, system=system, limit=limit)
            else:
                yield from by_file(connection, table, layer, file_order, system=system, limit=limit)

    def _table(self, dataset: DatasetName, layer: Layer) -> Table:
        table = load(self._catalog, dataset, layer)
        if table is None:
            raise NotFound(f"Dataset {dataset} has no {layer} table: no file of it is ready.")
        return table

    def _update(
        self,
        dataset: DatasetName,
        present: Present,
        new: Sequence[PresentFile],
        written: Uncommitted,
        fence: Fence,
        *,
        older_writers: bool = False,
    ) -> DatasetUpdate:
        return DatasetUpdate(
            self._catalog, self._connection, dataset, present, new, written, fence, older_writers=older_writers
        )
