"""A lake that belongs to one test, as a program uses it, and a place to run jobs of which nothing may be left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_lake_provider.lake import Lake
from airflow_lake_provider.settings import Secret, Settings
from tests.jobs.processes import Run, leaving_nothing


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of the lake."""
    return tmp_path / "home"


@pytest.fixture
def opened(ledger_dsn: str, home: Path) -> Iterator[Lake]:
    """An empty lake."""
    with Lake(Settings(home=home, ledger_dsn=Secret(ledger_dsn))) as lake:
        yield lake


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs jobs with their documents under ``tmp_path / "tmp"``."""
    return Run(tmp_path / "tmp")


@pytest.fixture
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """Fails a test that leaves a process or a document behind."""
    with leaving_nothing(tmp_path / "tmp"):
        yield
