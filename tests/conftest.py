"""What tests all over the tree share: a real Postgres for the session, an empty ledger in it for each test."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_lake_provider.ledger import embedded
from tests import hypothesis_profiles
from tests.command import Command
from tests.outages import Disk, Server

hypothesis_profiles.load()

_numbers = itertools.count(1)


def pytest_configure() -> None:
    # A shell without job control starts what it puts into the background deaf to interrupts, and so are its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _fast_folder() -> str:
    """Where files are cheap to make and to remove: memory, where there is plenty, else the disk."""
    memory = "/dev/shm"
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 * 2**30:
        return memory
    return tempfile.gettempdir()


FAST = _fast_folder()


def _in_database(dsn: str, name: str) -> str:
    head, _, tail = dsn.partition("?")
    return f"{head.rpartition('/')[0]}/{name}?{tail}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The DSN of an administrator of a Postgres that lives as long as the session."""
    # Not below pytest's own folder: that one is closed to the user whom the server runs as when we are root.
    home = Path(tempfile.mkdtemp(prefix="lake-test-", dir=FAST))
    home.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        # Hundreds of databases come and go, and none has to survive the machine.
        patch.setitem(embedded._SETTINGS, "fsync", "off")
        dsn = embedded.start(home)
    yield dsn
    embedded.stop(home)
    shutil.rmtree(home)


@pytest.fixture(scope="session")
def ledger_template(postgres_server: str) -> str:
    """The name of a database with an empty ledger, to be copied."""
    from airflow_lake_provider.ledger import Ledger

    name = "ledger_template"
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    with Ledger(_in_database(postgres_server, name)) as ledger:
        ledger.open()
    return name


@pytest.fixture
def empty_database(postgres_server: str) -> Iterator[str]:
    """The DSN of a database without anything in it."""
    name = f"empty_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        yield _in_database(postgres_server, name)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def ledger_dsn(postgres_server: str, ledger_template: str) -> Iterator[str]:
    """The DSN of an empty ledger that belongs to this test alone."""
    name = f"ledger_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {ledger_template}")
        yield _in_database(postgres_server, name)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def lake(ledger_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The ``lake`` command on an empty lake that belongs to this test alone."""
    for name in [name for name in os.environ if name.startswith(("LAKE_", "PG_", "INGEST_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKE_LEDGER_DSN", ledger_dsn)
    return Command()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Disk]]:
    """Makes a disk of the size that it is called with."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system that can be filled")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = []

    def mount(size: str) -> Disk:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "lake-test", str(folder)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return Disk(folder)

    yield mount
    for each in mounted:
        subprocess.run(["umount", "--lazy", str(each)], check=True)


@pytest.fixture(scope="module")
def own_home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="lake-outage-", dir=FAST))
    home.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(embedded._SETTINGS, "fsync", "off")
        yield home
        embedded.stop(home)
    shutil.rmtree(home)


@pytest.fixture
def server(own_home: Path, lake: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that the ``lake`` of this test uses, for ledger and catalog alike."""
    dsn = embedded.start(own_home)
    name = f"outage_{next(_numbers)}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    head, _, tail = dsn.partition("?")
    server = Server(own_home, f"{head.rpartition('/')[0]}/{name}?{tail}")
    monkeypatch.setenv("LAKE_LEDGER_DSN", server.dsn)
    yield server
    server.settle()
