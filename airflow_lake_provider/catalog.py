"""Opening the Iceberg catalog: an embedded one on the ledger's Postgres, or another that the settings name.

What the catalog reports in its own words is turned into this package's errors here, so that nothing above has to know
which catalog it is: ``CatalogUnavailable`` where trying again may help, ``CommitConflict`` where a table has changed.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError

from airflow_lake_provider.errors import CatalogUnavailable

P = ParamSpec("P")
R = TypeVar("R")

CATALOG_NAME = "lake"
CATALOG_SCHEMA = "iceberg"
_CREATE_LOCK = 7_304_110_882_501  # any number that nothing else in this database uses as an advisory lock


def _is_outage(error: DBAPIError) -> bool:
    return isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated


def _patient(method: Callable[P, R]) -> Callable[P, R]:
    """Repeat an operation that changes nothing, or the same thing, while the database is away."""

    @functools.wraps(method)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> R:
        patience = getattr(args[0], "patience_seconds", 0.0)
        deadline = time.monotonic() + patience
        pause = 0.1
        while True:
            try:
                return method(*args, **kwargs)
            except DBAPIError as error:
                if not _is_outage(error):
                    raise
                if time.monotonic() + pause > deadline:
                    raise CatalogUnavailable(
                        f"The Iceberg catalog could not be reached for {patience:.0f} s ({type(error.orig).__name__}); "
                        "nothing was changed, try again when its database is up."
                    ) from error
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    return repeated


class PostgresCatalog(SqlCatalog):
    """PyIceberg's SQL catalog in a schema of its own, made by whoever comes first, patient with outages.

    Raises CatalogUnavailable from every operation while the database is away. A commit is not repeated, since its
    outcome may be unknown; whoever commits looks at the table before trying again.
    """

    patience_seconds: float = 30.0

    def __init__(self, name: str, *, patience_seconds: float = 30.0, **properties: str) -> None:
        self.patience_seconds = patience_seconds
        super().__init__(name, **properties)

    @_patient
    def _init_catalog(self) -> None:
        with self.engine.connect() as connection:
            exists = connection.scalar(text(f"SELECT to_regclass('{CATALOG_SCHEMA}.iceberg_tables')"))
            if exists is None:
                # Creating schemas and tables is not safe against a second process that does the same.
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_CREATE_LOCK})"))
                connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {CATALOG_SCHEMA}"))
                connection.commit()
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_CREATE_LOCK})"))
                self.create_tables()
                connection.commit()
        self._schema_version = "v1"

    @_patient
    def load_table(self, identifier: str | Identifier) -> Table:
        return super().load_table(identifier)

    @_patient
    def table_exists(self, identifier: str | Identifier) -> bool:
        return super().table_exists(identifier)

    @_patient
    def namespace_exists(self, identifier: str | Identifier) -> bool:
        return super().namespace_exists(identifier)

    @_patient
    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        return super().load_namespace_properties(namespace)

    @_patient
    def drop_table(self, identifier: str | Identifier) -> None:
        """As above; where the answer to a first call was lost, NoSuchTableError may mean that it did its work."""
        super().drop_table(identifier)

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        try:
            SqlCatalog._write_metadata(metadata, io, metadata_path)
        except Exception:
            # On a full disk half of it would stay, and nothing ever names it.
            with contextlib.suppress(Exception):
                io.delete(metadata_path)
            raise

    @_patient
    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        return super().list_tables(namespace)

    @_patient
    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        try:
            super().create_namespace(namespace, properties)
        except IntegrityError as error:  # another process was faster
            raise NamespaceAlreadyExistsError(f"Namespace {namespace} already exists") from error

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        try:
            return super().commit_table(table, requirements, updates)
        except DBAPIError as error:
            if not _is_outage(error):
                raise
            raise CatalogUnavailable(
                f"The connection to the Iceberg catalog broke while table {'.'.join(table.name())} was committed "
                f"({type(error.orig).__name__}); whether it took place is looked up before anything is repeated."
            ) from error


def open_catalog(
    *,
    warehouse: str,
    dsn: str | None = None,
    catalog_type: str | None = None,
    uri: str | None = None,
    properties: dict[str, str] | None = None,
    patience_seconds: float = 30.0,
) -> Catalog:
    """Open the catalog whose tables live under ``warehouse`` (a URI).

    ``dsn`` is the Postgres that holds the embedded catalog (``postgresql://…``). With ``catalog_type`` and ``uri`` it
    is another catalog, opened by PyIceberg with ``properties`` as they are.

    Raises CatalogUnavailable where it cannot be reached for ``patience_seconds``.
    """
    address = uri or dsn
    if address is None:
        raise ValueError("open_catalog needs a DSN, or the type and URI of another catalog")
    if catalog_type not in (None, "sql") or not address.startswith("postgres"):
        options = {"type": catalog_type or "sql", "uri": address, "warehouse": warehouse, **(properties or {})}
        return load_catalog(CATALOG_NAME, **options)
    url = make_url(address).set(drivername="postgresql+psycopg")
    # A schema of its own keeps PyIceberg's tables apart from the ledger's in the same database.
    url = url.update_query_dict({"options": f"-c search_path={CATALOG_SCHEMA}"})
    return PostgresCatalog(
        CATALOG_NAME,
        patience_seconds=patience_seconds,
        uri=url.render_as_string(hide_password=False),
        warehouse=warehouse,
        **(properties or {}),
    )
