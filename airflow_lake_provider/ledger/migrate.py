"""Bringing the ledger's schema up to the version that this package knows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ProgrammingError

from airflow_lake_provider.errors import LedgerError
from airflow_lake_provider.ledger.schema import HEAD, SCHEMA, VERSION_TABLE

MIGRATIONS: Final = Path(__file__).with_name("migrations")
# "lake" in ASCII: any number will do, as long as every version of this package takes the same one.
_LOCK: Final = 0x6C616B65
_VERSION: Final = text(f"SELECT version_num FROM {SCHEMA}.{VERSION_TABLE}")


def current(connection: Connection) -> str | None:
    """The version the database is at, or None where the ledger has no tables yet."""
    # to_regclass gives null instead of an error, which would end a transaction that is under way.
    known: bool = connection.execute(text(f"SELECT to_regclass('{SCHEMA}.{VERSION_TABLE}') IS NOT NULL")).scalar_one()
    if not known:
        return None
    version: str | None = connection.execute(_VERSION).scalar_one_or_none()
    return version


def peek(engine: Engine) -> str | None:
    """Like ``current``, in one query where the tables are there, since every process that starts asks this."""
    try:
        with engine.connect() as connection:
            return connection.execute(_VERSION).scalar_one_or_none()
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) in ("42P01", "3F000"):
            return None
        raise


def upgrade(engine: Engine) -> None:
    """Create or upgrade the tables, all in one transaction; any number of processes may call this at once.

    Raises LedgerError where the schema is newer than this package, or the user may not create it.
    """
    try:
        with engine.begin() as connection:
            # Held until commit: the others wait here, then find nothing to do.
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            version = current(connection)
            if version == HEAD:
                return
            refuse_newer(version)
            # IF NOT EXISTS would ask for the right to create schemas also where an administrator made this one.
            if not connection.execute(text("SELECT to_regnamespace(:name) IS NOT NULL"), {"name": SCHEMA}).scalar():
                connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
            _run_alembic(connection)
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != "42501":
            raise
        raise LedgerError(
            f"The ledger's tables cannot be created or upgraded: the database user lacks the right to; "
            f"grant CREATE on the database, or create the schema {SCHEMA!r} and make the user its owner."
        ) from error


def refuse_newer(version: str | None) -> None:
    """Raise LedgerError for a version that this package has no migration to start from."""
    if version is not None and version > HEAD:
        raise LedgerError(
            f"The ledger's schema is at version {version} and this package knows versions up to {HEAD}: "
            "upgrade the package."
        )


def _run_alembic(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    # Alembic reads options through configparser, to which a percent sign is special.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
