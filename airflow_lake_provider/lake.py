"""A lake as a program uses it: files and datasets, and what is done with them.

Everything that the ``lake`` command does is a method here, without a scheduler and without printing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.dataset import DatasetName, Layer
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.services import Services

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_lake_provider.jobs.recording import Watcher
    from airflow_lake_provider.ledger import File
    from airflow_lake_provider.medallion.engine import TableColumn
    from airflow_lake_provider.uploads import Upload


class Lake(Services):
    """The lake that the settings describe, with what a user does with it."""

    # -- files ---------------------------------------------------------------------------------------------------------

    def upload(
        self,
        paths: Sequence[Path],
        dataset: DatasetName,
        *,
        overrides: Mapping[str, Any] | None = None,
        who: str | None = None,
    ) -> list[Upload]:
        """Store files in raw storage and register them, in order.

        What cannot be read, or cannot be stored for want of space, is refused alone, and once storage is away all that
        follow are. ``overrides`` are checked settings for these files. Raises LakeError where the ledger refuses.
        """
        from airflow_lake_provider.uploads import remove_abandoned, store

        remove_abandoned(self)
        return store(self, paths, dataset, overrides=overrides or {}, who=who)

    def process(self, dataset: DatasetName, file_ids: Collection[str], *, watch: Watcher | None = None) -> list[File]:
        """Work until nothing more will happen to these files by itself, and return them.

        Where another worker holds the dataset, its work is waited for; what it leaves is done here. Where there is no
        use in trying on, the files are returned as they are, with a reason; whoever works on the dataset next goes on.
        Raises LedgerUnavailable.
        """
        from airflow_lake_provider.jobs.recording import watch_nothing
        from airflow_lake_provider.jobs.runners import HereRunner
        from airflow_lake_provider.jobs.worker import Worker
        from airflow_lake_provider.ledger import resting

        ids = list(file_ids)
        worker = Worker(self, HereRunner(self), watch=watch or watch_nothing)
        wakeups: Iterator[object] | None = None
        trouble: LakeError | None = None
        while trouble is None and not self._resting(ids):
            turn = worker.turn(dataset=dataset)
            trouble = turn.trouble
            if turn.dataset is not None:
                continue
            if wakeups is None:
                wakeups = iter(self.ledger.listen(poll=1.0))
            next(wakeups)
        files = self.ledger.by_ids(ids)
        return [file if file.reason or resting(file) else replace(file, reason=str(trouble)) for file in files]

    def _resting(self, file_ids: Sequence[str]) -> bool:
        from airflow_lake_provider.ledger import resting

        return all(map(resting, self.ledger.by_ids(file_ids)))

    def reread(
        self,
        file_ids: Sequence[str],
        *,
        overrides: Mapping[str, Any] | None = None,
        who: str | None = None,
        watch: Watcher | None = None,
    ) -> list[File]:
        """Read files again: ready ones under the settings of now, failed and quarantined ones once more.

        Of a file that failed and is not cleaned up after, that is done first. ``overrides`` replace the files' own
        settings; None keeps them. Raises NotFound, TransitionRefused.
        """
        files = self.ledger.by_ids(file_ids)
        for file in files:
            if file.status == "failing":
                self.process(file.dataset, [file.file_id], watch=watch)
        files = self.ledger.by_ids(file_ids)
        ready = [file.file_id for file in files if file.status == "ready"]
        waiting = ("failing", "uploaded", "processing") if overrides is None else ("failing",)
        others = [file.file_id for file in files if file.status not in ("ready", *waiting)]
        if others:
            self.ledger.retry(others, overrides=overrides, who=who)
        if ready:
            self.ledger.reread(ready, overrides=overrides, who=who)
        by_dataset: dict[DatasetName, list[str]] = {}
        for file in files:
            by_dataset.setdefault(file.dataset, []).append(file.file_id)
        done = {file.file_id: file for name, ids in by_dataset.items() for file in self.process(name, ids, watch=watch)}
        return [done[file_id] for file_id in file_ids]

    # -- datasets ------------------------------------------------------------------------------------------------------

    def change_settings(
        self, dataset: DatasetName, changes: Mapping[str, Any], *, who: str | None = None, watch: Watcher | None = None
    ) -> list[File]:
        """Change a dataset's settings and read again every ready file, which the change may touch; gives those files.

        ``changes`` are checked values by key, None removes one. Nothing is read where nothing changes.
        """
        before = self.ledger.ensure_dataset(dataset)
        after = self.ledger.change_settings(dataset, changes, who=who)
        if after.settings_version == before.settings_version:
            return []
        ids = [file.file_id for file in self.ledger.present_files(dataset)]
        return self.reread(ids, who=who, watch=watch) if ids else []

    def rebuild(self, dataset: DatasetName) -> dict[Layer, int]:
        """Compute silver and gold anew from bronze; gives the rows of each layer.

        Waits for the dataset while another worker holds it. Raises NotFound.
        """
        from airflow_lake_provider.jobs.document import rebuild_document
        from airflow_lake_provider.jobs.work import no_progress, run_job

        lease = None
        while lease is None:
            lease = self.ledger.lease_dataset(
                dataset, self.worker, purpose="rebuild", lease_seconds=self.settings.lease_seconds, wait=5.0
            )
        with lease, lease.keep_alive():
            rows: dict[Layer, int] = run_job(rebuild_document(lease, self.ledger), self, lease, no_progress)["rows"]
        return rows

    def schema(self, dataset: DatasetName, layer: Layer) -> tuple[list[TableColumn], list[TableColumn]]:
        """The data columns of a layer and its ``_`` columns. Raises NotFound where there is no table."""
        self.ledger.dataset(dataset)
        return self.engine.schema(dataset, layer)

    def rows(
        self, dataset: DatasetName, layer: Layer, *, system: bool = False, limit: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a layer in their order. Raises NotFound where there is no table."""
        order = [file.file_id for file in self.ledger.present_files(dataset)]
        return self.engine.rows(dataset, layer, file_order=order, system=system, limit=limit)
