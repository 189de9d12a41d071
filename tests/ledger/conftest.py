"""A ledger, and short ways to fill it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator

import pytest

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.ledger import Counts, File, Ledger, NewFile

_numbers = itertools.count(1)

ORDERS = DatasetName("acme", "shop", "orders")
COUNTS = Counts(records=10, bronze=10, silver=9, gold=8, rescued=1)


def new_file(content: str | None = None, *, size: int = 100, **values: object) -> NewFile:
    """An upload with the given content, or with one that no other has."""
    number = next(_numbers)
    text = f"content {number}" if content is None else content
    defaults: dict[str, object] = {
        "file_id": f"{number:032x}",
        "name": f"file{number}.csv",
        "raw_uri": f"file:///raw/{number:032x}.csv",
        "size": size,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    return NewFile(**(defaults | values))  # type: ignore[arg-type]


@pytest.fixture
def ledger(ledger_dsn: str) -> Iterator[Ledger]:
    with Ledger(ledger_dsn) as opened:
        yield opened


@pytest.fixture
def upload(ledger: Ledger) -> Callable[..., File]:
    """Upload one file, with a content of its own where none is given."""

    def upload_one(content: str | None = None, dataset: DatasetName = ORDERS, **values: object) -> File:
        return ledger.upload(dataset, new_file(content, **values), who="ana")[0]  # type: ignore[arg-type]

    return upload_one
