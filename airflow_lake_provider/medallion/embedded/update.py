"""One pass through the three layers of a dataset, each with one commit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence

import duckdb
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from airflow_lake_provider.dataset import DatasetName, Layer
from airflow_lake_provider.medallion.embedded.bronze import BronzeWriter, Unit
from airflow_lake_provider.medallion.embedded.gold import Part, distinct_over_files
from airflow_lake_provider.medallion.embedded.merging import to_merge, write_merged
from airflow_lake_provider.medallion.embedded.owners import Held, held_by, owners, rewrite_without
from airflow_lake_provider.medallion.embedded.parquet import (
    Uncommitted,
    describe,
    discard,
    literal,
    local_path,
    new_data_path,
)
from airflow_lake_provider.medallion.embedded.plan import moved, plan
from airflow_lake_provider.medallion.embedded.silver import SilverWriter, Source
from airflow_lake_provider.medallion.embedded.tables import (
    TableChange,
    drop_tables,
    live_files,
    load,
    unnamed_files,
)
from airflow_lake_provider.medallion.engine import Fence, FileOutcome, PresentFile, Progress
from airflow_lake_provider.medallion.present import Present

# Data files with fewer rows than this are computed together when a table is computed anew.
_GROUP_ROWS = 500_000


class DatasetUpdate:
    """One pass through the three layers of a dataset: from the files in ``present`` to those and the ``new`` ones.

    With ``older_writers``, one that lost its lease may still be at work. Then every table gets a commit, an empty one
    where nothing changes: what such a writer computed on an older base can no longer be committed.
    """

    def __init__(
        self,
        catalog: Catalog,
        connection: duckdb.DuckDBPyConnection,
        dataset: DatasetName,
        present: Present,
        new: Sequence[PresentFile],
        written: Uncommitted,
        fence: Fence,
        *,
        older_writers: bool = False,
    ) -> None:
        self._catalog = catalog
        self._connection = connection
        self._dataset = dataset
        self._present = present
        self._new = new
        self._after = present.with_files(new) if new else present
        self._written = written
        self._fence = fence
        self._older_writers = older_writers
        self._before = plan(present.joined)
        self._plan = plan(self._after.joined)
        self._valued = frozenset(present.joined.valued)
        self._silver_parts: list[Part] = []
        self._gold_parts: list[Part] = []
        self._silver_anew = False
        self._seconds: dict[str, float] = {}
        self._committed: list[Layer] = []

    def bronze(self, change: TableChange, writer: BronzeWriter | None, gone: Collection[str]) -> None:
        """Commit bronze: the rows of ``gone`` out, those of the writer's files in."""
        started = time.monotonic()
        if not self._after:
            drop_tables(self._catalog, self._dataset, self._fence)
            return
        change.set_columns(self._plan.bronze)
        self._take_out(change, self._held(change, gone), gone)
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
        files = self._after.files if self._silver_anew else self._new
        writer = SilverWriter(self._connection, change, self._plan, files)
        if self._silver_anew:
            change.drop(change.live_files())
            sources = self._bronze_sources()
        else:
            self._take_out(change, self._held(change, gone), gone)
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
        held = self._held(change, gone)
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
        if not gone:
            self._merge_small(change, kept)
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

        Only in tables that this update has committed to: there, no older writer can commit its files any more.
        """
        for layer in self._committed:
            table = load(self._catalog, self._dataset, layer)
            if table is not None:
                discard(unnamed_files(table))

    def _commit(self, change: TableChange) -> None:
        created = change.create(self._fence)
        with self._written.commit():
            if change.commit(self._fence, always=self._older_writers and not created) or created:
                self._committed.append(change.layer)

    def _held(self, change: TableChange, gone: Collection[str]) -> Held:
        # Listing a table's data files takes a while where there are thousands.
        return held_by(self._connection, change.live_files(), gone) if gone else Held()

    def _merge_small(self, change: TableChange, kept: Sequence[DataFile]) -> None:
        """Put small data files of those that stay together in this commit, where there are many."""
        small = to_merge(kept)
        if small:
            path = new_data_path(change.data_location, owners(self._connection, small[0])[0])
            footer = write_merged(self._connection, small, path, change.schema)
            change.drop(small)
            change.append([describe(path, footer, change.metadata)])

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
        known = {file.file_id for file in self._after.files}
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
