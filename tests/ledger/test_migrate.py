from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from airflow_lake_provider.errors import LedgerError
from airflow_lake_provider.ledger import Ledger, migrate
from airflow_lake_provider.ledger.schema import HEAD, SCHEMA, VERSION_TABLE, metadata
from tests.ledger.conftest import ORDERS, new_file


def test_the_newest_migration_is_the_one_the_code_names() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_current_head() == HEAD
    for script in scripts.walk_revisions():
        assert Path(script.path).name.startswith(f"{script.revision}_")


def test_the_migrations_make_the_tables_that_the_code_knows(ledger: Ledger) -> None:
    ledger.open()
    with ledger._database.engine().connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "version_table": VERSION_TABLE,
                "version_table_schema": SCHEMA,
                "compare_server_default": True,
                "compare_type": True,
            },
        )
        assert compare_metadata(context, metadata) == []


def test_several_may_open_an_empty_database_at_once(empty_database: str) -> None:
    def open_and_use(number: int) -> str:
        with Ledger(empty_database) as ledger:
            return ledger.upload(ORDERS, new_file())[0].status

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(open_and_use, range(6))) == ["uploaded"] * 6


def test_a_current_ledger_opens_without_alembic(ledger_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "alembic"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "alembic", None)
    with Ledger(ledger_dsn) as ledger:
        assert ledger.files() == []


def test_a_missing_schema_is_refused_where_migrating_is_not_wanted(empty_database: str) -> None:
    with Ledger(empty_database, migrate=False) as ledger, pytest.raises(LedgerError, match="missing"):
        ledger.open()
    with Ledger(empty_database) as ledger:
        ledger.open()
    with Ledger(empty_database, migrate=False) as ledger:
        assert ledger.files() == []


def test_a_newer_schema_is_refused(ledger: Ledger, ledger_dsn: str) -> None:
    ledger.open()
    with psycopg.connect(ledger_dsn) as admin:
        admin.execute("UPDATE lake.alembic_version SET version_num = '9999'")
    with Ledger(ledger_dsn) as newer, pytest.raises(LedgerError, match=r"9999.*upgrade the package"):
        newer.open()


def test_a_user_without_rights_is_told_which(empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as admin:
        admin.execute("CREATE ROLE guest LOGIN")
        try:
            dsn = empty_database.replace("postgres@", "guest@")
            with Ledger(dsn) as ledger, pytest.raises(LedgerError, match="grant CREATE"):
                ledger.open()
            admin.execute("CREATE SCHEMA lake AUTHORIZATION guest")
            with Ledger(dsn) as ledger:
                assert ledger.open().files() == []
        finally:
            admin.execute("DROP OWNED BY guest CASCADE")
            admin.execute("DROP ROLE guest")
