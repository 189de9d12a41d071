"""The embedded engine: DuckDB computes, Arrow and DuckDB write Parquet, PyIceberg commits."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import duckdb
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from airflow_lake_provider.dataset import LAYERS, DatasetName, Layer
from airflow_lake_provider.errors import NotFound
from airflow_lake_provider.medallion.embedded.bronze import BronzeWriter, Unit
from airflow_lake_provider.medallion.embedded.browse import by_file, sorted_by_values
from airflow_lake_provider.medallion.embedded.gold import Part, distinct_over_files
from airflow_lake_provider.medallion.embedded.owners import Held, held_by, owners, rewrite_without
from airflow_lake_provider.medallion.embedded.parquet import (
    Uncommitted,
    describe,
    discard,
    literal,
    local_path,
)
from airflow_lake_provider.medallion.embedded.plan import Plan, moved, plan_columns, valued
from airflow_lake_provider.medallion.embedded.relations import connect
from airflow_lake_provider.medallion.embedded.silver import SilverWriter, Source
from airflow_lake_provider.medallion.embedded.storage import storage_reported
from airflow_lake_provider.medallion.embedded.summaries import admit
from airflow_lake_provider.medallion.embedded.tables import (
    SYSTEM_COLUMNS,
    TableChange,
    column_type,
    data_columns,
    live_files,
    load,
    unnamed_files,
)
from airflow_lake_provider.medallion.engine import (
    Fence,
    FileOutcome,
    FileWork,
    PresentFile,
    Progress,
    TableColumn,
)
from airflow_lake_provider.medallion.reading import Limits

# Data files with fewer rows than this are computed together when a table is computed anew.
_GROUP_ROWS = 500_000


class EmbeddedEngine:
    """Tables on local storage under any catalog that PyIceberg opens.

    ``memory_limit`` (DuckDB's spelling) bounds what is computed in memory, more is spilled to ``temp_dir``;
    ``threads`` 0 means one per core. A file whose rows need more than ``target_file_bytes`` has several data files of
    about that size.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        temp_dir: Path,
        limits: Limits,
        memory_limit: str = "512MB",
        threads: int = 0,
        target_file_bytes: int = 128_000_000,
    ) -> None:
        self._catalog = catalog
        self._temp_dir = temp_dir
        self._memory_limit = memory_limit
        self._threads = threads
        self._limits = limits
        self._target_file_bytes = target_file_bytes

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
        present: Sequence[PresentFile],
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
                after = sorted([*present, *new], key=lambda file: file.file_id)
                clean = {o.file_id for o in ready if earlier.get(o.file_id, "same") == "same"}
                run = _Run(self, dataset, present, after, written, fence)
                run.bronze(bronze, writer, set(earlier))
                run.silver(writer.units, set(earlier))
                run.gold(set(earlier), stale=any(file_id not in clean for file_id in earlier))
                if earlier:
                    run.sweep()
                run.tell(outcomes, progress)
        return [outcomes[item.file_id] for item in work]

    def take_out(
        self, dataset: DatasetName, present: Sequence[PresentFile], file_ids: Sequence[str], *, fence: Fence
    ) -> None:
        """See Engine.take_out."""
        gone = set(file_ids)
        with storage_reported(temp_dir=self._temp_dir), Uncommitted() as written:
            bronze = TableChange(self._catalog, dataset, "bronze")
            if not present or not bronze.exists:
                fence()
                self._drop(dataset)
                return
            run = _Run(self, dataset, present, present, written, fence)
            run.bronze(bronze, None, gone)
            run.silver([], gone)
            run.gold(gone, stale=True)
            run.sweep()

    def rebuild(self, dataset: DatasetName, present: Sequence[PresentFile], *, fence: Fence) -> dict[Layer, int]:
        """See Engine.rebuild."""
        with storage_reported(temp_dir=self._temp_dir), Uncommitted() as written:
            if load(self._catalog, dataset, "bronze") is None:
                raise NotFound(f"Dataset {dataset} has no tables yet: there is nothing to rebuild.")
            run = _Run(self, dataset, present, present, written, fence)
            run.silver([], set(), anew=True)
            run.gold(set(), stale=True)
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

    def _drop(self, dataset: DatasetName) -> None:
        """Drop the dataset's tables with all that lies under them: no file is present any more."""
        for layer in LAYERS:
            table = load(self._catalog, dataset, layer)
            if table is None:
                continue
            with contextlib.suppress(NoSuchTableError):  # dropped by a call whose answer was lost
                self._catalog.drop_table(dataset.table(layer))
            shutil.rmtree(local_path(table.location()), ignore_errors=True)


class _Run:
    """One pass through the three layers of a dataset: from the files in ``present`` to those in ``after``."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        dataset: DatasetName,
        present: Sequence[PresentFile],
        after: Sequence[PresentFile],
        written: Uncommitted,
        fence: Fence,
    ) -> None:
        self._engine = engine
        self._catalog = engine._catalog
        self._connection = engine._connection
        self._dataset = dataset
        self._present = present
        self._after = after
        self._written = written
        self._fence = fence
        self._before: Plan = plan_columns(present)
        self._plan: Plan = plan_columns(after)
        self._valued = valued(present)
        self._silver_parts: list[Part] = []
        self._gold_parts: list[Part] = []
        self._silver_anew = False
        self._seconds: dict[str, float] = {}
        self._committed: list[Layer] = []

    def bronze(self, change: TableChange, writer: BronzeWriter | None, gone: Collection[str]) -> None:
        """Commit bronze: the rows of ``gone`` out, those of the writer's files in."""
        started = time.monotonic()
        if not self._after:
            self._fence()
            self._engine._drop(self._dataset)
            return
        change.set_columns(self._plan.bronze)
        self._take_out(change, held_by(self._connection, change.live_files(), gone), gone)
        for unit in writer.units if writer is not None else ():
            assert writer is not None
            writer.write_shared(unit)
            change.append(
                describe(path, footer, change.metadata) for path, footer in zip(unit.paths, unit.footers, strict=True)
            )
        self._commit(change)
        self._seconds["bronze"] = time.monotonic() - started

    def silver(self, units: Sequence[Unit], gone: Collection[str], *, anew: bool = False) -> None:
        """Commit silver: the rows of ``gone`` out and those of ``units`` in, or all of it anew from bronze."""
        if not self._after:
            return
        started = time.monotonic()
        change = TableChange(self._catalog, self._dataset, "silver")
        missing = not change.exists and bool(self._present)
        self._silver_anew = anew or missing or moved(change.base_schema, self._before, self._plan, self._valued)
        change.set_columns(self._plan.typed)
        writer = SilverWriter(self._connection, change, self._plan, self._after)
        if self._silver_anew:
            change.drop(change.live_files())
            sources = self._bronze_sources()
        else:
            self._take_out(change, held_by(self._connection, change.live_files(), gone), gone)
            sources = [Source.of_unit(unit) for unit in units if unit.paths]
        for source in sources:
            parts = writer.write(source)
            self._silver_parts.extend(parts)
        change.append(describe(part.path, part.footer, change.metadata) for part in self._silver_parts)
        self._commit(change)
        self._seconds["silver"] = time.monotonic() - started

    def gold(self, gone: Collection[str], *, stale: bool) -> None:
        """Commit gold: what the new rows of silver add, or all of it anew from silver where it is ``stale``.

        Rows that were first brought by a file of ``gone`` may be in other files too, so they are looked for anew.
        """
        if not self._after:
            return
        started = time.monotonic()
        change = TableChange(self._catalog, self._dataset, "gold")
        silver = load(self._catalog, self._dataset, "silver")
        assert silver is not None
        held = held_by(self._connection, change.live_files(), gone)
        anew = (
            self._silver_anew
            or (stale and (not gone or bool(held)))
            or (not change.exists and bool(self._present))
            or moved(change.base_schema, self._before, self._plan, self._valued)
        )
        change.set_columns(self._plan.typed)
        if anew:
            change.drop(change.live_files())
            kept: list[DataFile] = []
            parts = self._silver_parts if self._silver_anew else self._live_parts(silver)
        else:
            kept_parts = self._take_out(change, held, gone)
            dropped = {data_file.file_path for data_file in held.all}
            kept = [f for f in change.live_files() if f.file_path not in dropped]
            parts = self._silver_parts
        same_ids = _same_ids(silver, change)
        self._gold_parts = distinct_over_files(
            self._connection,
            parts,
            silver.schema(),
            [local_path(f.file_path) for f in kept] + ([] if anew else [part.path for part in kept_parts]),
            change.schema,
            change.data_location,
            same_ids=same_ids,
        )
        change.append(
            describe(part.path, part.footer, change.metadata, silver.schema() if same_ids else None)
            for part in self._gold_parts
        )
        self._commit(change)
        self._seconds["gold"] = time.monotonic() - started

    def tell(self, outcomes: dict[str, FileOutcome], progress: Progress) -> None:
        """Fill in how many rows each file has, and report the stages."""
        silver = self._rows_by_file(self._silver_parts)
        gold = self._rows_by_file(self._gold_parts)
        for outcome in outcomes.values():
            if outcome.status != "ready":
                continue
            outcome.rows = {
                "bronze": outcome.records or 0,
                "silver": silver[outcome.file_id],
                "gold": gold[outcome.file_id],
            }
            for layer, rows in outcome.rows.items():
                progress(outcome.file_id, layer, {"rows": rows, "seconds": round(self._seconds.get(layer, 0.0), 3)})

    def sweep(self) -> None:
        """Delete the files that an attempt which died, or never learned of its commit, has left behind.

        Only in tables that this run has changed: there, no older writer can commit its files any more.
        """
        for layer in self._committed:
            table = load(self._catalog, self._dataset, layer)
            if table is not None:
                discard(unnamed_files(table))

    def _commit(self, change: TableChange) -> None:
        with self._written.commit():
            if change.commit(self._fence):
                self._committed.append(change.layer)

    def _take_out(self, change: TableChange, held: Held, gone: Collection[str]) -> list[Part]:
        """Drop the data files of ``gone`` and put back what they share with others."""
        parts = rewrite_without(self._connection, held, gone, change.schema, change.data_location)
        change.drop(held.all)
        change.append(describe(part.path, part.footer, change.metadata) for part in parts)
        return parts

    def _bronze_sources(self) -> list[Source]:
        """Bronze as far as it is of ``after``, a large file by itself and small data files in groups, in the order of
        the files.

        Rows of other files are left over from an attempt that did not succeed, until it is their turn again.
        """
        table = load(self._catalog, self._dataset, "bronze")
        assert table is not None
        known = {file.file_id for file in self._after}
        by_owner: dict[tuple[str, ...], list[DataFile]] = {}
        for data_file in live_files(table):
            ours = tuple(owner for owner in owners(self._connection, data_file) if owner in known)
            if ours:
                by_owner.setdefault(ours, []).append(data_file)
        sources: list[Source] = []
        group: list[DataFile] = []
        ids: set[str] = set()
        for who, files in sorted(by_owner.items()):
            rows = sum(f.record_count for f in files)
            if group and rows + sum(f.record_count for f in group) > _GROUP_ROWS:
                sources.append(Source.of_table(table.schema(), group, ids))
                group, ids = [], set()
            group.extend(files)
            ids.update(who)
        if group:
            sources.append(Source.of_table(table.schema(), group, ids))
        return sources

    def _live_parts(self, table: Table) -> list[Part]:
        import pyarrow.parquet as pq

        return [
            Part(path := local_path(f.file_path), pq.read_metadata(path), owners(self._connection, f))
            for f in live_files(table)
        ]

    def _rows_by_file(self, parts: Sequence[Part]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for part in parts:
            if len(part.file_ids) == 1:
                counts[part.file_ids[0]] += part.rows
            else:
                rows = self._connection.execute(
                    f"SELECT _file_id, count(*) FROM read_parquet({literal(str(part.path))}) GROUP BY 1"
                ).fetchall()
                counts.update(dict(rows))
        return counts


def _same_ids(silver: Table, gold: TableChange) -> bool:
    """Whether every column of gold has the field id that it has in silver."""
    ids = {field.name: field.field_id for field in silver.schema().fields}
    return all(ids.get(field.name) == field.field_id for field in gold.schema.fields)
