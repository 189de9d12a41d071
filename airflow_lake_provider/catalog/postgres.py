"""The embedded catalog: PyIceberg's SQL catalog in the ledger's Postgres."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError

from airflow_lake_provider.catalog.patience import lost_commit, patient
from airflow_lake_provider.errors import LeaseLost

logger = logging.getLogger(__name__)

CATALOG_SCHEMA = "iceberg"
_CREATE_LOCK = 7_304_110_882_501  # any number that nothing else in this database uses as an advisory lock
# How many tables' metadata are kept in memory.
_PARSED_TABLES = 6
# The metadata file that the commit under way in this context has written.
_metadata_written: ContextVar[str | None] = ContextVar("metadata_written", default=None)


def _is_outage(error: DBAPIError) -> bool:
    return isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated


T = TypeVar("T")


class _Shared(list[T]):
    """A list whose elements are never changed, so that a deep copy may share them.

    PyIceberg copies a table's whole metadata several times in each commit. With hundreds of snapshots or thousands of
    columns this would be most of the work.
    """

    def __deepcopy__(self, memo: dict[int, object]) -> _Shared[T]:
        return _Shared(self)

    def __add__(self, other: list[Any]) -> _Shared[Any]:
        return _Shared([*self, *other])


def _shared(metadata: TableMetadata) -> TableMetadata:
    names = ("snapshots", "snapshot_log", "metadata_log", "schemas", "partition_specs", "sort_orders")
    return metadata.model_copy(update={name: _Shared(getattr(metadata, name)) for name in names})


def _delete_unnamed(io: FileIO, path: str) -> None:
    """Delete a metadata file that no table names; the error that led here is the one to report."""
    try:
        io.delete(path)
    except Exception as error:
        logger.warning("%s is not named by any table and could not be deleted: %s", path, error)


class PostgresCatalog(SqlCatalog):
    """PyIceberg's SQL catalog in a schema of its own, made by whoever comes first, patient with outages.

    Raises CatalogUnavailable from every operation while the database is away. A commit is not repeated, since its
    outcome may be unknown; whoever commits looks at the table before trying again.
    """

    def __init__(self, name: str, *, patience_seconds: float = 30.0, **properties: str) -> None:
        self.patience_seconds = patience_seconds
        self._fence: Callable[[Connection], None] | None = None
        self._parsed: dict[str, TableMetadata] = {}
        super().__init__(name, **properties)
        event.listen(self.engine, "commit", self._before_commit)

    def outage(self, error: Exception) -> str | None:
        """See Patient."""
        return type(error.orig).__name__ if isinstance(error, DBAPIError) and _is_outage(error) else None

    @contextlib.contextmanager
    def fenced(self, check: Callable[[Connection], None]) -> Iterator[None]:
        """Run ``check(connection)`` in every transaction of the block, right before its commit.

        What it raises is raised by the operation, and nothing is changed then. For a check against the same database,
        no moment is left between looking and committing.
        """
        self._fence = check
        try:
            yield
        finally:
            self._fence = None

    def _before_commit(self, connection: Connection) -> None:
        if self._fence is None:
            return
        try:
            self._fence(connection)
        except BaseException:
            # SQLAlchemy takes a transaction whose commit was tried for ended, and would pool the connection with its
            # locks still held.
            connection.connection.rollback()
            raise

    @patient
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

    @patient
    def load_table(self, identifier: str | Identifier) -> Table:
        return super().load_table(identifier)

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        # A metadata file is never written twice and what was parsed of it is never changed, so the same one need not
        # be read again for the commit, and for the next step.
        location = orm_table.metadata_location
        metadata = self._parsed.get(location or "")
        if location is None or metadata is None:
            table = super()._convert_orm_to_iceberg(orm_table)
            table.metadata = _shared(table.metadata)
            self._remember(table.metadata_location, table.metadata)
            return table
        return Table(
            identifier=(*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )

    def _remember(self, location: str, metadata: TableMetadata) -> None:
        while len(self._parsed) >= _PARSED_TABLES:
            del self._parsed[next(iter(self._parsed))]
        self._parsed[location] = metadata

    @patient
    def table_exists(self, identifier: str | Identifier) -> bool:
        return super().table_exists(identifier)

    @patient
    def namespace_exists(self, identifier: str | Identifier) -> bool:
        return super().namespace_exists(identifier)

    @patient
    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        return super().load_namespace_properties(namespace)

    @patient
    def drop_table(self, identifier: str | Identifier) -> None:
        """As above; where the answer to a first call was lost, NoSuchTableError may mean that it did its work."""
        super().drop_table(identifier)

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        try:
            _metadata_written.set(metadata_path)
            SqlCatalog._write_metadata(metadata, io, metadata_path)
        except Exception:
            # On a full disk half of it would stay, and nothing ever names it.
            _delete_unnamed(io, metadata_path)
            raise

    @patient
    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        return super().list_tables(namespace)

    @patient
    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        try:
            super().create_namespace(namespace, properties)
        except IntegrityError as error:  # another process was faster
            raise NamespaceAlreadyExistsError(f"Namespace {namespace} already exists") from error

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        _metadata_written.set(None)
        try:
            response = super().commit_table(table, requirements, updates)
        except (CommitFailedException, TableAlreadyExistsError, LeaseLost):
            # It did not take place for sure, so nothing names the file.
            if (path := _metadata_written.get()) is not None:
                _delete_unnamed(table.io, path)
            raise
        except DBAPIError as error:
            if not _is_outage(error):
                raise
            raise lost_commit(table.name(), type(error.orig).__name__) from error
        self._remember(response.metadata_location, _shared(response.metadata))
        return response
