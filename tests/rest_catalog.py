"""An Iceberg REST catalog that can be told to misbehave: a real one over HTTP, with its tables in a local folder.

It speaks as much of the protocol as PyIceberg's ``RestCatalog`` asks for. What it answers when all is well comes from
PyIceberg's own SQL catalog on SQLite, which stands behind it and checks the requirements of every commit.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import Capability, CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, CommitTableResponse, StagedTable, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

Operation = Literal["config", "namespace", "create namespace", "load", "create", "commit", "drop", "list"]
"""What a request asks for; ``create`` stages a new table, which its first ``commit`` brings to life."""

_ENDPOINTS = (
    Capability.V1_NAMESPACE_EXISTS,
    Capability.V1_LOAD_NAMESPACE,
    Capability.V1_CREATE_NAMESPACE,
    Capability.V1_LIST_TABLES,
    Capability.V1_TABLE_EXISTS,
    Capability.V1_LOAD_TABLE,
    Capability.V1_CREATE_TABLE,
    Capability.V1_UPDATE_TABLE,
    Capability.V1_DELETE_TABLE,
)
_PATH = re.compile(r"/v1/(?:config|namespaces(?:/(?P<namespace>[^/]+)(?P<tables>/tables(?:/(?P<table>[^/]+))?)?)?)")
_STATUS: dict[type[Exception], int] = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


@dataclass(frozen=True)
class Request:
    """A request as it came in; ``namespace`` and ``table`` are empty where it names none."""

    operation: Operation
    namespace: str
    table: str


@dataclass
class Misbehaviour:
    """What becomes of the next ``times`` requests for ``operation`` (in ``namespace``, if one is given).

    ``carry_out`` is how often the request is carried out: 0 not at all, 2 as behind a proxy that repeats a request
    whose answer it lost. The answer is then that of the last time, unless ``status`` is another one, or None: the
    connection is dropped. ``meanwhile`` is called after that, before the answer. What is carried out ``late`` is so
    right before the next commit that comes in, long after the answer.
    """

    operation: Operation
    namespace: str = ""
    carry_out: int = 1
    status: int | Literal["as it is"] | None = "as it is"
    meanwhile: Callable[[], None] | None = None
    late: bool = False
    times: int = 1


@dataclass(frozen=True)
class _Answer:
    status: int
    body: str = ""

    @classmethod
    def error(cls, status: int, kind: str, message: str) -> _Answer:
        return cls(status, json.dumps({"error": {"message": message, "type": kind, "code": status}}))


class RestCatalogServer:
    """A REST catalog on a port of its own, which keeps everything in ``folder``.

    ``tables`` is the folder of its tables, ``requests`` those that came in so far. Used as a context manager it ends
    with the block.
    """

    def __init__(self, folder: Path) -> None:
        self.tables = folder / "tables"
        self.tables.mkdir(parents=True)
        self.requests: list[Request] = []
        self.faults: list[Any] = []
        self._behind = SqlCatalog("behind", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{self.tables}")
        self._lock = threading.RLock()
        self._misbehaviours: list[Misbehaviour] = []
        self._late: list[Callable[[], _Answer]] = []
        self._connections: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.come_back()

    @property
    def uri(self) -> str:
        """The address for ``LAKE_CATALOG_URI``."""
        return f"http://127.0.0.1:{self._port}"

    def misbehave(self, misbehaviour: Misbehaviour) -> None:
        """From now on, until it is used up or ``behave`` is called."""
        with self._lock:
            self._misbehaviours.append(misbehaviour)

    def behave(self) -> int:
        """Forget all misbehaviour, and do what is late; gives how many times of it had not yet happened."""
        with self._lock:
            self._catch_up()
            left = sum(each.times for each in self._misbehaviours)
            self._misbehaviours.clear()
            return left

    def go_away(self) -> None:
        """Refuse connections, and drop those that are open."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def come_back(self) -> None:
        """Listen again, on the same port."""
        if self._server is None:
            self._server = _Server(("127.0.0.1", self._port), self)
            self._port = self._server.server_address[1]
            threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def count(self, operation: Operation, namespace: str = "") -> int:
        """How many such requests came in."""
        return sum(
            each.operation == operation and (not namespace or each.namespace == namespace) for each in self.requests
        )

    def close(self) -> None:
        """End for good; raises where a request was not understood."""
        self.go_away()
        self._behind.close()
        if self.faults:
            raise ExceptionGroup("requests that the catalog could not answer", self.faults)

    def __enter__(self) -> RestCatalogServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- answering -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _connected(self, connection: socket.socket) -> Iterator[None]:
        with self._lock:
            self._connections.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _answer(self, method: str, target: str, body: bytes) -> _Answer | None:
        """The answer to a request, or None to drop the connection."""
        request, work = self._understand(method, target, body)
        with self._lock:
            self.requests.append(request)
            how = self._next(request)
            answer = None
            if request.operation == "commit":
                self._catch_up()
            if how.late:
                self._late += [work] * how.carry_out
            for _ in range(0 if how.late else how.carry_out):
                answer = self._carry_out(work)
        if how.meanwhile is not None:
            how.meanwhile()
        if how.status == "as it is":
            assert answer is not None
            return answer
        if how.status is None:
            return None
        return _Answer.error(how.status, "Misbehaviour", "The catalog was told to answer so.")

    def _catch_up(self) -> None:
        late, self._late = self._late, []
        for work in late:
            self._carry_out(work)

    def _next(self, request: Request) -> Misbehaviour:
        for each in self._misbehaviours:
            if each.times and each.operation == request.operation and each.namespace in ("", request.namespace):
                each.times -= 1
                return each
        return Misbehaviour(request.operation)

    def _carry_out(self, work: Callable[[], _Answer]) -> _Answer:
        try:
            return work()
        except tuple(_STATUS) as error:
            return _Answer.error(_STATUS[type(error)], type(error).__name__, str(error))

    def _understand(self, method: str, target: str, body: bytes) -> tuple[Request, Callable[[], _Answer]]:
        path = urlsplit(target).path
        match = _PATH.fullmatch(path)
        assert match is not None, f"no such resource: {method} {path}"
        namespace, table = (unquote(match[name] or "") for name in ("namespace", "table"))
        identifier = (namespace, table)
        behind = self._behind
        operation: Operation
        work: Callable[[], _Answer]
        if path.endswith("/config"):
            operation, work = "config", self._config
        elif not namespace:
            assert method == "POST"
            namespace = ".".join(json.loads(body)["namespace"])
            operation, work = "create namespace", lambda: self._create_namespace(namespace)
        elif not match["tables"]:
            assert method in ("GET", "HEAD")
            operation, work = "namespace", lambda: self._namespace(namespace)
        elif not table and method == "GET":
            operation, work = "list", lambda: self._list(namespace)
        elif not table:
            assert method == "POST"
            # Whoever wrote the request left out what is null.
            absent = dict.fromkeys(("location", "partition-spec", "write-order"))
            create = CreateTableRequest.model_validate(absent | json.loads(body))
            table = create.name
            operation, work = "create", lambda: self._create((namespace, table), create)
        elif method in ("GET", "HEAD"):
            operation, work = "load", lambda: _table(behind.load_table(identifier))
        elif method == "POST":
            operation, work = "commit", lambda: self._commit(identifier, CommitTableRequest.model_validate_json(body))
        else:
            assert method == "DELETE"
            operation, work = "drop", lambda: self._drop(identifier)
        return Request(operation, namespace, table), work

    def _config(self) -> _Answer:
        endpoints = [str(each) for each in _ENDPOINTS]
        return _Answer(200, json.dumps({"defaults": {}, "overrides": {}, "endpoints": endpoints}))

    def _create_namespace(self, namespace: str) -> _Answer:
        self._behind.create_namespace(namespace)
        return _Answer(200, json.dumps({"namespace": [namespace], "properties": {}}))

    def _namespace(self, namespace: str) -> _Answer:
        properties = self._behind.load_namespace_properties(namespace)
        return _Answer(200, json.dumps({"namespace": [namespace], "properties": properties}))

    def _list(self, namespace: str) -> _Answer:
        names = [{"namespace": [namespace], "name": name} for *_, name in self._behind.list_tables(namespace)]
        return _Answer(200, json.dumps({"identifiers": names}))

    def _create(self, identifier: tuple[str, str], request: CreateTableRequest) -> _Answer:
        behind = self._behind
        if not behind.namespace_exists(identifier[0]):
            raise NoSuchNamespaceError(f"Namespace does not exist: {identifier[0]}")
        if behind.table_exists(identifier):
            raise TableAlreadyExistsError(f"Table {'.'.join(identifier)} already exists")
        create = behind._create_staged_table if request.stage_create else behind.create_table
        made = create(
            identifier,
            schema=request.table_schema,
            location=request.location,
            partition_spec=request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            sort_order=request.write_order or UNSORTED_SORT_ORDER,
            properties=request.properties,
        )
        return _table(made)

    def _commit(self, identifier: tuple[str, str], request: CommitTableRequest) -> _Answer:
        table = _Named(identifier)
        response = self._behind.commit_table(table, request.requirements, request.updates)  # type: ignore[arg-type]
        return _Answer(200, _json(response))

    def _drop(self, identifier: tuple[str, str]) -> _Answer:
        self._behind.drop_table(identifier)
        return _Answer(204)


@dataclass(frozen=True)
class _Named:
    """All that a commit needs to know of a table."""

    identifier: tuple[str, str]

    def name(self) -> tuple[str, str]:
        return self.identifier


def _json(response: CommitTableResponse) -> str:
    return response.model_dump_json(by_alias=True)


def _table(table: Table | StagedTable) -> _Answer:
    return _Answer(200, _json(CommitTableResponse(metadata=table.metadata, metadata_location=table.metadata_location)))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], catalog: RestCatalogServer) -> None:
        self._catalog = catalog
        super().__init__(address, _handler(catalog))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is nothing to report; what else went wrong is a fault of this module or of a test."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, ConnectionError):
            self._catalog.faults.append(error)


def _handler(catalog: RestCatalogServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open, so that a request may meet one that was dropped
        disable_nagle_algorithm = True  # else every answer waits 40 ms for an acknowledgement of its head

        def handle(self) -> None:
            with catalog._connected(self.connection):
                super().handle()

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = catalog._answer(self.command, self.path, body)
            if answer is None:
                self.close_connection = True
                with contextlib.suppress(OSError):  # dropped already
                    self.connection.shutdown(socket.SHUT_RDWR)
                return
            content = answer.body.encode()
            self.send_response(answer.status)
            if answer.status != 204:
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_DELETE = _any

        def log_message(self, *_: Any) -> None:
            """The test says what it needs to say."""

    return Handler
