"""A lake as a program uses it: the ledger, raw storage, the catalog and an engine, opened when first needed.

Everything that the ``lake`` command does is a method here, without a scheduler and without printing.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow_lake_provider.dataset import DatasetName, Layer
from airflow_lake_provider.errors import (
    LakeError,
    LeaseLost,
    LedgerUnavailable,
    NotFound,
    SettingsError,
)
from airflow_lake_provider.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog

    from airflow_lake_provider.jobs.attempts import Attempts
    from airflow_lake_provider.jobs.ingest import Watcher
    from airflow_lake_provider.ledger import Claim, File, Ledger
    from airflow_lake_provider.medallion.engine import Engine, TableColumn
    from airflow_lake_provider.raw import RawStore

logger = logging.getLogger(__name__)

EngineName = Literal["duckdb"]


@dataclass(frozen=True, slots=True)
class Upload:
    """What became of one upload: the file as the ledger has it, or why it was refused before it had an id."""

    path: Path
    file: File | None
    reason: str | None = None


def _nothing(file: File, stage: str, numbers: dict[str, Any]) -> None:
    """Watch nothing."""


class Lake(AbstractContextManager["Lake"]):
    """The lake that the settings describe. Embedded services start when they are needed, and go on running."""

    def __init__(self, settings: Settings | None = None, *, engine: str | None = None) -> None:
        self.settings = settings or Settings.from_env()
        name = engine or self.settings.engine
        if name != "duckdb":
            raise SettingsError(f"The engine {name!r} cannot be used: this version has the engine 'duckdb'.")

    @property
    def worker(self) -> str:
        """The name under which this process appears in the ledger."""
        return f"{socket.gethostname()}:{os.getpid()}"

    @cached_property
    def _dsn(self) -> str:
        if self.settings.ledger is not None:
            return self.settings.ledger.reveal()
        from airflow_lake_provider.ledger.embedded import start

        return start(self.settings.home)

    @cached_property
    def ledger(self) -> Ledger:
        """The ingest database, its tables up to date."""
        from airflow_lake_provider.ledger import Ledger

        return Ledger(self._dsn, max_attempts=self.settings.max_attempts, retry_for=self.settings.retry_seconds)

    @cached_property
    def raw(self) -> RawStore:
        """Raw storage."""
        from airflow_lake_provider.raw import RawStore

        options = self.settings.raw_options
        return RawStore(
            self.settings.raw,
            options=dict(options.reveal()) if options else None,
            max_bytes=self.settings.max_file_bytes,
            retry_seconds=self.settings.retry_seconds,
        )

    @cached_property
    def catalog(self) -> Catalog:
        """The Iceberg catalog."""
        from airflow_lake_provider.catalog import open_catalog

        settings = self.settings
        properties = dict(settings.catalog_properties.reveal()) if settings.catalog_properties else {}
        if settings.catalog_token is not None:
            properties["token"] = settings.catalog_token.reveal()
        if settings.catalog_credential is not None:
            properties["credential"] = settings.catalog_credential.reveal()
        warehouse = settings.warehouse
        return open_catalog(
            warehouse=f"file://{warehouse}" if warehouse.startswith("/") else warehouse,
            dsn=None if settings.catalog_uri else self._dsn,
            catalog_type=settings.catalog_type,
            uri=settings.catalog_uri.reveal() if settings.catalog_uri else None,
            properties=properties,
            patience_seconds=settings.retry_seconds,
        )

    @cached_property
    def engine(self) -> Engine:
        """The engine that computes."""
        from airflow_lake_provider.medallion.embedded.engine import EmbeddedEngine
        from airflow_lake_provider.medallion.reading import Limits

        settings = self.settings
        return EmbeddedEngine(
            self.catalog,
            temp_dir=settings.temp_dir,
            memory_limit=f"{settings.duckdb_memory_limit}B",
            threads=settings.duckdb_threads,
            target_file_bytes=settings.target_file_bytes,
            limits=Limits(max_bytes=settings.max_decompressed_bytes, max_ratio=settings.max_compression_ratio),
        )

    def close(self) -> None:
        """Close connections; the embedded services go on running."""
        for part in ("engine", "catalog", "ledger"):
            if part in self.__dict__:
                getattr(self, part).close()

    def __exit__(self, *_: object) -> None:
        self.close()

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
        from airflow_lake_provider.errors import InvalidName, StorageError, StorageUnavailable
        from airflow_lake_provider.file_id import new_file_id
        from airflow_lake_provider.ledger import NewFile

        self.ledger.ensure_dataset(dataset)
        uploads: list[Upload] = []
        away: StorageUnavailable | None = None
        for path in paths:
            if away is not None:
                uploads.append(Upload(path, None, str(away)))
                continue
            file_id = new_file_id()
            try:
                stored = self.raw.put(path, dataset, file_id)
            except (InvalidName, NotFound, StorageError) as error:
                away = error if isinstance(error, StorageUnavailable) else None
                uploads.append(Upload(path, None, str(error)))
                continue
            try:
                (file,) = self.ledger.upload(
                    dataset,
                    NewFile(file_id, path.name, stored.uri, stored.size, stored.sha256, dict(overrides or {})),
                    who=who,
                )
            except LedgerUnavailable:
                raise  # it may have been registered after all: the bytes stay
            except LakeError:
                self.raw.delete(stored.uri)
                raise
            uploads.append(Upload(path, file))
        return uploads

    def process(self, dataset: DatasetName, file_ids: Collection[str], *, watch: Watcher = _nothing) -> list[File]:
        """Work until nothing more will happen to these files by itself, and return them.

        Where another worker holds the dataset, its work is waited for; what it leaves is done here. Where there is no
        use in trying on, the files are returned as they are, with a reason; whoever works on the dataset next goes on.
        Raises LedgerUnavailable.
        """
        from airflow_lake_provider.jobs.attempts import Attempts
        from airflow_lake_provider.ledger import resting

        ids = list(file_ids)
        attempts = Attempts(self.settings.max_attempts)
        wakeups: Iterator[object] | None = None
        trouble: LakeError | None = None
        while trouble is None and not self._resting(ids):
            worked, trouble = self._work_once(dataset, watch, attempts)
            if worked:
                continue
            if wakeups is None:
                wakeups = iter(self.ledger.listen(poll=1.0))
            next(wakeups)
        files = self.ledger.by_ids(ids)
        return [file if file.reason or resting(file) else replace(file, reason=str(trouble)) for file in files]

    def _resting(self, file_ids: Sequence[str]) -> bool:
        from airflow_lake_provider.ledger import resting

        return all(map(resting, self.ledger.by_ids(file_ids)))

    def _work_once(self, dataset: DatasetName, watch: Watcher, attempts: Attempts) -> tuple[bool, LakeError | None]:
        """Claim and do one batch of work: whether there was one, and what makes it useless to go on."""
        settings = self.settings
        claim = self.ledger.claim(
            self.worker,
            dataset=dataset,
            max_files=settings.batch_max_files,
            max_bytes=settings.batch_max_bytes,
            lease_seconds=settings.lease_seconds,
        )
        if claim is None:
            return False, None
        with ExitStack() as held:
            held.enter_context(claim)
            try:
                return True, self._attempt(claim, watch, attempts)
            except LeaseLost as error:
                logger.warning("%s", error)
                return True, None
            except LedgerUnavailable:
                held.pop_all()  # the time for reaching the ledger is used up: the lease ends by itself
                raise

    def _attempt(self, claim: Claim, watch: Watcher, attempts: Attempts) -> LakeError | None:
        try:
            self._run(claim, watch)
        except (LeaseLost, LedgerUnavailable):
            raise
        except LakeError as error:
            return None if attempts.failed(claim, error) else error
        attempts.succeeded(claim)
        return None

    def _run(self, claim: Claim, watch: Watcher) -> None:
        if claim.kind == "removal":
            from airflow_lake_provider.jobs.removal import run_removal

            run_removal(claim, ledger=self.ledger, engine=self.engine)
            return
        from airflow_lake_provider.jobs.ingest import run_ingest

        run_ingest(
            claim,
            ledger=self.ledger,
            raw=self.raw,
            engine=self.engine,
            temp_dir=self.settings.temp_dir,
            watch=watch,
        )

    def reread(
        self,
        file_ids: Sequence[str],
        *,
        overrides: Mapping[str, Any] | None = None,
        who: str | None = None,
        watch: Watcher = _nothing,
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
        self, dataset: DatasetName, changes: Mapping[str, Any], *, who: str | None = None, watch: Watcher = _nothing
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
        from airflow_lake_provider.jobs.ingest import present_files

        lease = None
        while lease is None:
            lease = self.ledger.lease_dataset(
                dataset, self.worker, purpose="rebuild", lease_seconds=self.settings.lease_seconds, wait=5.0
            )
        with lease, lease.keep_alive():
            present = present_files(self.ledger, lease.dataset)
            return self.engine.rebuild(dataset, present, fence=lease.check)

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
