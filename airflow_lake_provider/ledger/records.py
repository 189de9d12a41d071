"""What the ledger gives and takes: plain, frozen records. Times are in UTC, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.ledger.states import Actor, Status

Kind = Literal["ingest", "removal"]


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """Who holds a dataset, what for, and until when by the database's clock (past: anyone may take it over)."""

    owner: str
    purpose: str
    attempt: int
    expires: datetime


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset as the ledger knows it. ``settings_version`` rises with every change of ``settings``."""

    id: int
    name: DatasetName
    settings: Mapping[str, Any]
    settings_version: int
    lease: LeaseInfo | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Counts:
    """How many records the file has without its header, how many rows each layer got from it, how many were rescued."""

    records: int
    bronze: int
    silver: int
    gold: int
    rescued: int = 0


@dataclass(frozen=True, slots=True)
class NewFile:
    """An upload to register: the bytes are in raw storage already.

    ``file_id`` is chosen by the caller (sortable by time); registering the same one again changes nothing.
    ``overrides`` are settings for this file alone.
    """

    file_id: str
    name: str
    raw_uri: str
    size: int
    sha256: str
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class File:
    """One file.

    ``seq`` gives the order of upload. ``attempt`` counts the claims and fences late writers; ``deaths`` counts the
    jobs that died with this file alone, since its last success or retry. ``stage`` is what the worker does just now.
    ``waiting`` is for duplicates: True while ``duplicate_of`` is not yet ready. ``removal_requested`` is a removal that
    will follow once the worker lets go. ``pending`` names what a finished removal still has to do, for example
    ``purge``. ``settings_version`` is the version of the dataset's settings under which the file became ready.
    """

    file_id: str
    dataset_id: int
    dataset: DatasetName
    seq: int
    name: str
    raw_uri: str
    size: int
    sha256: str
    status: Status
    stage: str | None
    attempt: int
    deaths: int
    waiting: bool
    duplicate_of: str | None
    former_status: Status | None
    removal_requested: Status | None
    pending: tuple[str, ...]
    counts: Counts | None
    overrides: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    notes: Sequence[Any]
    reason: str | None
    settings_version: int | None
    not_before: datetime | None
    uploaded_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Event:
    """One line of history. ``from_status`` equals ``to_status`` where the state did not change (a stage, a note).

    ``file_id``, both states and ``attempt`` are None for an event of the dataset as a whole.
    """

    id: int
    dataset_id: int
    file_id: str | None
    at: datetime
    actor: Actor
    who: str | None
    from_status: Status | None
    to_status: Status | None
    stage: str | None
    attempt: int | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one claimed file ended. ``ready`` wants ``counts`` and ``summary``; the others want a ``reason``.

    For a removal, ``archived`` and ``deleted`` are the good ends (and ``failed`` that of a ``failing`` file, which
    keeps its reason); ``pending`` then names what is still to be done, for example ``("purge", "models")``.
    """

    file_id: str
    status: Literal["ready", "failed", "quarantined", "failing", "archived", "deleted"]
    counts: Counts | None = None
    summary: Mapping[str, Any] | None = None
    notes: Sequence[Any] = ()
    reason: str | None = None
    pending: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification: something about a file or a dataset was written. It wakes up; the ledger has the facts."""

    dataset_id: int
    file_id: str | None
    status: Status | None
    stage: str | None
