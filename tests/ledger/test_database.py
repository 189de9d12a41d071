from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path

import psycopg
import pytest

from airflow_lake_provider.errors import LedgerError, LedgerUnavailable, SettingsError
from airflow_lake_provider.ledger import Ledger
from airflow_lake_provider.ledger.database import conninfo, passing, place, to_json
from tests.ledger.conftest import ORDERS, new_file

# Forking beside the threads of other libraries is safe here: the child uses none of them.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+psycopg2"])
def test_the_usual_spellings_of_a_dsn(scheme: str, ledger_dsn: str) -> None:
    with Ledger(ledger_dsn.replace("postgresql", scheme, 1)) as ledger:
        assert ledger.files() == []


def test_a_dsn_of_words(ledger_dsn: str) -> None:
    given = {name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(ledger_dsn).items()}
    words = " ".join(f"{name}='{value}'" for name, value in given.items())
    assert "://" not in words
    with Ledger(words) as ledger:
        assert ledger.files() == []


def test_a_dsn_that_cannot_be_read_is_not_shown() -> None:
    with pytest.raises(SettingsError) as refused:
        conninfo("postgresql://ana:se%cret@host/db")
    assert "cret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_messages_and_reprs_have_no_password() -> None:
    dsn = "postgresql://ana:secret@127.0.0.1:1/db"
    assert place(dsn) == "db on 127.0.0.1:1"
    with Ledger(dsn, retry_for=0.2) as ledger:
        assert "secret" not in repr(ledger)
        start = time.monotonic()
        with pytest.raises(LedgerUnavailable, match=r"db on 127.0.0.1:1.*check that it runs") as refused:
            ledger.files()
        assert time.monotonic() - start < 5
    assert "secret" not in str(refused.value)


def test_a_database_that_does_not_exist(postgres_server: str) -> None:
    dsn = postgres_server.replace("/lake?", "/nowhere?")
    with Ledger(dsn, retry_for=0.1) as ledger, pytest.raises(LedgerError, match="nowhere"):
        ledger.open()


def test_what_is_worth_another_try() -> None:
    assert passing(psycopg.errors.SerializationFailure())
    assert passing(psycopg.errors.AdminShutdown())
    assert passing(psycopg.OperationalError("connection refused"))
    assert not passing(psycopg.OperationalError('FATAL: password authentication failed for user "ana"'))
    assert not passing(psycopg.errors.UniqueViolation())


def test_json_that_postgres_takes() -> None:
    assert to_json({"a": "\0"}) == '{"a": "\\ufffd"}'
    assert to_json(["\ud800", "\\u0000", "😀"]) == '["\\ufffd", "\\\\u0000", "\\ud83d\\ude00"]'
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(float("nan"))


def test_a_ledger_goes_through_a_fork_and_through_pickle(ledger: Ledger) -> None:
    ledger.upload(ORDERS, new_file())
    of_the_child = new_file()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ledger.upload(ORDERS, of_the_child)
            os.write(write, b"done")
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 10) == b"done"
    os.close(read)
    os.close(write)
    ledger.upload(ORDERS, new_file())
    with pickle.loads(pickle.dumps(ledger)) as copy:
        assert len(copy.files()) == 3


def test_many_threads_share_a_ledger(ledger: Ledger) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                ledger.upload(ORDERS, new_file())
                ledger.files(ORDERS, limit=3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures
    assert ledger.status_counts()["uploaded"] == 50


def test_connections_that_are_cut_are_replaced(ledger: Ledger) -> None:
    ledger.upload(ORDERS, new_file())
    with psycopg.connect(ledger.conninfo, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert len(ledger.files()) == 1


def test_the_ledger_is_imported_only_when_it_is_needed() -> None:
    import airflow_lake_provider.ledger as package

    source = Path(package.__file__).read_text(encoding="utf-8")
    assert "import_module" in source
    assert sorted(package.__all__) == sorted(package._HOMES)
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        package.nothing  # noqa: B018
