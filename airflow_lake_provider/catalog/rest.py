"""PyIceberg's REST catalog, patient with outages, and never waiting for an answer without end."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from pyiceberg.table import CommitTableResponse, CreateTableTransaction, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError, ConnectionError, Timeout

from airflow_lake_provider.catalog.patience import lost_commit, patient

_OUTAGES = (ConnectionError, Timeout, ChunkedEncodingError, ServerError, ServiceUnavailableError, TooManyRequestsError)
# It may have been carried out all the same.
_UNKNOWN = (*_OUTAGES, CommitStateUnknownException, AuthorizationExpiredError)
_CONNECT_SECONDS = 10.0
_LEAST_SECONDS = 5.0


class _Timed(HTTPAdapter):
    """Gives up on connections and answers that do not come; ``requests`` itself would wait for ever."""

    def __init__(self, seconds: float) -> None:
        self._timeout = (min(_CONNECT_SECONDS, seconds), seconds)
        super().__init__()

    def send(
        self, request: PreparedRequest, stream: bool = False, timeout: Any = None, *args: Any, **options: Any
    ) -> Response:
        return super().send(request, stream, timeout or self._timeout, *args, **options)


class PatientRestCatalog(RestCatalog):
    """An Iceberg REST catalog, asked again while it is away.

    Each request waits for its answer twice ``patience_seconds``. Raises CatalogUnavailable from every operation while
    the catalog is away. A commit is not repeated, since its outcome may be unknown; whoever commits looks at the table
    before trying again.
    """

    def __init__(self, name: str, *, patience_seconds: float = 30.0, **properties: str) -> None:
        self.patience_seconds = patience_seconds
        super().__init__(name, **properties)

    def outage(self, error: Exception) -> str | None:
        """See Patient."""
        return type(error).__name__ if isinstance(error, _OUTAGES) else None

    def _create_session(self) -> Session:
        session = super()._create_session()
        seconds = max(_LEAST_SECONDS, 2 * self.patience_seconds)
        for prefix, adapter in list(session.adapters.items()):
            if type(adapter) is HTTPAdapter:  # a signing one keeps its own
                session.mount(prefix, _Timed(seconds))
        return session

    @patient
    def _fetch_config(self) -> None:
        super()._fetch_config()

    @patient
    def load_table(self, identifier: str | Identifier) -> Table:
        table: Table = super().load_table(identifier)
        return table

    @patient
    def table_exists(self, identifier: str | Identifier) -> bool:
        exists: bool = super().table_exists(identifier)
        return exists

    @patient
    def namespace_exists(self, namespace: str | Identifier) -> bool:
        exists: bool = super().namespace_exists(namespace)
        return exists

    @patient
    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        properties: Properties = super().load_namespace_properties(namespace)
        return properties

    @patient
    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        tables: list[Identifier] = super().list_tables(namespace)
        return tables

    @patient
    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """As above; where the answer to a first call was lost, NamespaceAlreadyExistsError may mean that it worked."""
        super().create_namespace(namespace, properties)

    @patient
    def create_table_transaction(self, *args: Any, **options: Any) -> CreateTableTransaction:
        """As above; nothing is created before the transaction is committed."""
        begun: CreateTableTransaction = super().create_table_transaction(*args, **options)
        return begun

    @patient
    def drop_table(self, identifier: str | Identifier, purge_requested: bool = False) -> None:
        """As above; where the answer to a first call was lost, NoSuchTableError may mean that it did its work."""
        super().drop_table(identifier, purge_requested)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        try:
            response: CommitTableResponse = super().commit_table(table, requirements, updates)
        except _UNKNOWN as error:
            raise lost_commit(table.name(), type(error).__name__) from error
        return response
