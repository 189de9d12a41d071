"""A lake that belongs to one test, as a program uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_lake_provider.lake import Lake
from airflow_lake_provider.settings import Secret, Settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of the lake."""
    return tmp_path / "home"


@pytest.fixture
def opened(ledger_dsn: str, home: Path) -> Iterator[Lake]:
    """An empty lake."""
    with Lake(Settings(home=home, ledger_dsn=Secret(ledger_dsn))) as lake:
        yield lake
