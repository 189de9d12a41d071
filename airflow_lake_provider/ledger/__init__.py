"""The ingest database: what has happened to every file, and what is waiting to be done.

``Ledger`` is the way in. ``embedded`` runs a Postgres of its own where there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_lake_provider.ledger.claims import Claim, Lease
    from airflow_lake_provider.ledger.ledger import Ledger
    from airflow_lake_provider.ledger.records import (
        Counts,
        Dataset,
        Event,
        File,
        Kind,
        LeaseInfo,
        NewFile,
        Notice,
        Outcome,
    )
    from airflow_lake_provider.ledger.states import Actor, Status
    from airflow_lake_provider.ledger.transitions import resting

_HOMES = {
    "Actor": "states",
    "Claim": "claims",
    "Counts": "records",
    "Dataset": "records",
    "Event": "records",
    "File": "records",
    "Kind": "records",
    "Lease": "claims",
    "LeaseInfo": "records",
    "Ledger": "ledger",
    "NewFile": "records",
    "Notice": "records",
    "Outcome": "records",
    "Status": "states",
    "resting": "transitions",
}

__all__ = [
    "Actor",
    "Claim",
    "Counts",
    "Dataset",
    "Event",
    "File",
    "Kind",
    "Lease",
    "LeaseInfo",
    "Ledger",
    "NewFile",
    "Notice",
    "Outcome",
    "Status",
    "resting",
]


def __getattr__(name: str) -> Any:
    # SQLAlchemy takes a while to import, and starting the embedded Postgres does not need it.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)
