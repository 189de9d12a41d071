"""The connection to the ledger's Postgres: lazy, pooled, one engine per process, patient with short outages."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError

from airflow_lake_provider.errors import LedgerError, LedgerUnavailable, SettingsError
from airflow_lake_provider.ledger import migrate
from airflow_lake_provider.ledger.schema import HEAD

T = TypeVar("T")

# SQLSTATE classes and codes after which the same transaction may well succeed: connection trouble, a server that is
# starting or stopping, too many clients, and a conflict with another transaction.
_PASSING: Final = ("08", "57P01", "57P02", "57P03", "53300", "40001", "40P01")
# A login that is refused comes without an SQLSTATE; these words of the server say that waiting will not help.
_REFUSED: Final = ("password authentication failed", "no password supplied", "no pg_hba.conf entry")
_LONGEST_PAUSE: Final = 2.0


def conninfo(dsn: str) -> str:
    """The DSN as libpq wants it; SQLAlchemy's spelling (``postgresql+psycopg://``) is taken too.

    Raises SettingsError where it is neither a URL nor ``key=value`` words.
    """
    scheme, separator, rest = dsn.partition("://")
    text = f"postgresql://{rest}" if separator and scheme.split("+")[0] in ("postgresql", "postgres") else dsn
    try:
        conninfo_to_dict(text)
    except psycopg.ProgrammingError:
        # The cause is not chained: it quotes the text, password included.
        raise SettingsError(
            "The DSN of the ingest database cannot be read: expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE, "
            "with special characters percent-encoded."
        ) from None
    return text


def place(info: str) -> str:
    """Where a libpq connection string leads, fit for messages: no password, no user."""
    words = conninfo_to_dict(info)
    port = f":{words['port']}" if words.get("port") else ""
    return f"{words.get('dbname') or 'the default database'} on {words.get('host') or 'the default host'}{port}"


def connect(info: str, **options: Any) -> psycopg.Connection[Any]:
    """A plain psycopg connection with the package's defaults."""
    return psycopg.connect(**_arguments(info), **options)


def _arguments(info: str) -> dict[str, Any]:
    return {
        "application_name": "lake",
        "connect_timeout": 10,
        # Server-side prepared statements break behind transaction poolers.
        "prepare_threshold": None,
        **conninfo_to_dict(info),
    }


def to_json(value: object) -> str:
    """JSON as jsonb takes it: NUL and lone surrogates, which Postgres refuses, become U+FFFD."""
    text = json.dumps(value, allow_nan=False)
    if "\\u0000" in text or "\\ud" in text:
        text = json.dumps(_storable(value), allow_nan=False)
    return text


def storable(text: str) -> str:
    """The text with NUL and lone surrogates, which Postgres refuses, replaced by U+FFFD."""
    return "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    return value


class Database:
    """Runs transactions, and tries again while an outage is short.

    ``retry_for`` is how many seconds an outage may last before LedgerUnavailable is raised; ``backoff`` the first pause
    between two tries, which then doubles. With ``migrate`` False an old or missing schema is refused, not upgraded.
    """

    def __init__(self, dsn: str, *, retry_for: float, backoff: float, pool_size: int, migrate: bool) -> None:
        self.conninfo = conninfo(dsn)
        self.retry_for = retry_for
        self.backoff = backoff
        self._pool_size = pool_size
        self._migrate = migrate
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._inherited: list[Engine] = []
        self._pid = 0
        self._current = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None, "_engine": None, "_inherited": [], "_pid": 0, "_current": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    @property
    def place(self) -> str:
        return place(self.conninfo)

    def engine(self) -> Engine:
        """This process's engine. One that was inherited through a fork is left alone: its sockets are the parent's."""
        if self._engine is not None and self._pid == os.getpid():
            return self._engine
        if self._pid != os.getpid():
            # A lock that another thread of the parent held at the fork would never be released here.
            self._lock = threading.Lock()
        with self._lock:
            if self._engine is None or self._pid != os.getpid():
                if self._engine is not None:
                    # Kept, so that its connections are never collected: the parent is using them.
                    self._inherited.append(self._engine)
                self._engine = create_engine(
                    "postgresql+psycopg://",
                    # Not a creator function: the dialect hands its own adapters over as one more argument.
                    connect_args=_arguments(self.conninfo),
                    isolation_level="READ COMMITTED",
                    pool_size=self._pool_size,
                    max_overflow=self._pool_size * 2,
                    pool_recycle=1800,
                    hide_parameters=True,
                    # No hstore here, and looking for it costs each new process a query.
                    use_native_hstore=False,
                    json_serializer=to_json,
                )
                self._pid = os.getpid()
            return self._engine

    def close(self) -> None:
        """Close the pooled connections; the next use opens new ones."""
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()

    def run(self, work: Callable[[Connection, bool], T]) -> T:
        """Run ``work(connection, again)`` in one transaction and commit it.

        ``again`` is True from the second try on: then an earlier try may have been committed without our knowing.
        Raises LedgerUnavailable after ``retry_for`` seconds of outage, LedgerError for what the database refuses.
        """

        def transaction(again: bool) -> T:
            engine = self.engine()
            if not self._current:
                self._open(engine)
            with engine.begin() as connection:
                return work(connection, again)

        return self.patiently(transaction)

    def patiently(self, attempt: Callable[[bool], T]) -> T:
        """Call ``attempt(again)`` until it works, for at most ``retry_for`` seconds of passing trouble."""
        deadline = time.monotonic() + self.retry_for
        pause = self.backoff
        again = False
        while True:
            try:
                return attempt(again)
            except (DBAPIError, psycopg.Error) as error:
                if not passing(error):
                    raise self._refused(error) from error
                if time.monotonic() + pause > deadline:
                    raise LedgerUnavailable(
                        f"The ingest database ({self.place}) could not be used for {self.retry_for:g} s: "
                        f"{_first_line(error)}; check that it runs and can be reached, then try again."
                    ) from error
            again = True
            time.sleep(pause * random.uniform(0.7, 1.3))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _open(self, engine: Engine) -> None:
        version = migrate.peek(engine)
        if version != HEAD:
            migrate.refuse_newer(version)
            if not self._migrate:
                raise LedgerError(
                    f"The ledger's schema in {self.place} is {'missing' if version is None else f'at {version}'} "
                    f"and this package needs {HEAD}: upgrade it first."
                )
            migrate.upgrade(engine)
        self._current = True

    def _refused(self, error: Exception) -> LedgerError:
        return LedgerError(f"The ingest database ({self.place}) refused a statement: {_first_line(error)}.")


def passing(error: DBAPIError | psycopg.Error) -> bool:
    """Whether the same transaction may succeed a little later."""
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return True
        cause: object = error.orig
    else:
        cause = error
    state = getattr(cause, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_PASSING)
    return isinstance(cause, psycopg.OperationalError) and not any(word in str(cause) for word in _REFUSED)


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    lines = str(cause).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(cause).__name__
