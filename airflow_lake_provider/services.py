"""What a lake is made of: the ledger, raw storage, the catalog and an engine, each opened when first needed."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Self

from airflow_lake_provider.errors import SettingsError
from airflow_lake_provider.settings import Settings
from airflow_lake_provider.workspace import Workspace

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_lake_provider.ledger import Lease, Ledger
    from airflow_lake_provider.medallion.engine import Engine
    from airflow_lake_provider.raw import RawStore


class Services(AbstractContextManager["Services"]):
    """The parts that the settings describe. Embedded services start when they are needed, and go on running."""

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
    def dsn(self) -> str:
        """The address of the ledger's database, password included; an embedded one is started."""
        if self.settings.ledger is not None:
            return self.settings.ledger.reveal()
        from airflow_lake_provider.ledger.embedded import start

        return start(self.settings.home)

    @cached_property
    def ledger(self) -> Ledger:
        """The ingest database, its tables up to date."""
        from airflow_lake_provider.ledger import Ledger

        return Ledger(self.dsn, max_attempts=self.settings.max_attempts, retry_for=self.settings.retry_seconds)

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
            dsn=None if settings.catalog_uri else self.dsn,
            catalog_type=settings.catalog_type,
            uri=settings.catalog_uri.reveal() if settings.catalog_uri else None,
            properties=properties,
            patience_seconds=settings.retry_seconds,
        )

    @cached_property
    def workspace(self) -> Workspace:
        """The folder for this process's work in progress."""
        return Workspace(self.settings.temp_dir)

    @cached_property
    def engine(self) -> Engine:
        """The engine that computes."""
        from airflow_lake_provider.medallion.embedded.engine import EmbeddedEngine
        from airflow_lake_provider.medallion.reading import Limits

        settings = self.settings
        return EmbeddedEngine(
            self.catalog,
            temp_dir=lambda: self.workspace.path,
            memory_limit=f"{settings.duckdb_memory_limit}B",
            threads=settings.duckdb_threads,
            target_file_bytes=settings.target_file_bytes,
            limits=Limits(max_bytes=settings.max_decompressed_bytes, max_ratio=settings.max_compression_ratio),
        )

    def close(self) -> None:
        """Close connections and remove work in progress; the embedded services go on running."""
        for part in ("engine", "catalog", "ledger", "workspace"):
            if part in self.__dict__:
                self.__dict__.pop(part).close()

    @contextlib.contextmanager
    def fenced(self, lease: Lease) -> Iterator[None]:
        """Commits of the block are refused once the lease is lost, where the catalog lives in the ledger's database."""
        from airflow_lake_provider.catalog.postgres import PostgresCatalog

        catalog = self.catalog
        if self.settings.catalog_uri is None and isinstance(catalog, PostgresCatalog):
            with catalog.fenced(lease.check_within):
                yield
        else:
            yield

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
