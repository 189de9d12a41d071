"""What a user does: upload, archive, delete, restore, retry, re-read, change settings. Each runs in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import DatasetNameCollision, NotFound, TransitionRefused
from airflow_lake_provider.ledger.database import storable
from airflow_lake_provider.ledger.records import Dataset, NewFile
from airflow_lake_provider.ledger.schema import datasets, file_events, files
from airflow_lake_provider.ledger.states import COUNTED, Actor, Removal, Status, allowed
from airflow_lake_provider.ledger.transitions import (
    Locked,
    Move,
    apply,
    fresh,
    holder,
    lock_dataset,
    lock_files,
    lock_where,
    refuse,
    removal_values,
    to_dataset,
)
from airflow_lake_provider.ledger.uploads import arrived

# The word for each way back to "uploaded", by the state it starts from.
READ_AGAIN: Final[Mapping[str, tuple[Status, ...]]] = {
    "restored": ("archived",),
    "retried": ("failed", "quarantined", "duplicate"),
    "re-read": ("ready",),
}
_REMOVED: Final[Mapping[Removal, str]] = {"archiving": "archived", "deleting": "deleted"}
_DONE: Final[Mapping[Removal, tuple[Status, ...]]] = {
    "archiving": ("archiving", "archived"),
    "deleting": ("deleting", "deleted"),
}


def ensure_dataset(connection: Connection, name: DatasetName) -> Dataset:
    """The dataset, created where it is new; raises DatasetNameCollision where another one has its table name."""
    table_name = name.table_name
    row = connection.execute(select(datasets).where(datasets.c.table_name == table_name)).one_or_none()
    if row is None:
        values = {"vendor": name.vendor, "project": name.project, "folder": name.folder, "table_name": table_name}
        connection.execute(upsert(datasets).values(values).on_conflict_do_nothing())
        row = connection.execute(select(datasets).where(datasets.c.table_name == table_name)).one()
    found = to_dataset(row)
    if found.name != name:
        raise DatasetNameCollision(
            f"The dataset {name} cannot be created: its tables would be named {table_name}, and those belong to "
            f"the dataset {found.name}; choose another name."
        )
    return found


def find_dataset(connection: Connection, name: DatasetName) -> Dataset:
    """The dataset of that name; raises NotFound."""
    query = select(datasets).where(
        datasets.c.vendor == name.vendor, datasets.c.project == name.project, datasets.c.folder == name.folder
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"The ledger has no dataset {name}: upload a file to create it.")
    return to_dataset(row)


def upload(
    connection: Connection, name: DatasetName, new: Sequence[NewFile], *, announced: bool, who: str | None
) -> None:
    """Register uploads in the order given; those whose bytes the dataset has already become duplicates.

    Raises UploadAbandoned where one of them was ``announced`` and given up since.
    """
    dataset = ensure_dataset(connection, name)
    lock_dataset(connection, dataset.id)
    known = _already_registered(connection, dataset.id, new)
    unique = {file.file_id: file for file in new if file.file_id not in known}
    if announced:
        arrived(connection, list(unique.values()))
    hashes = {file.sha256 for file in unique.values()}
    # Who has the bytes: its id, and whether it is ready.
    present = {
        item.file.sha256: (item.file.file_id, item.file.status == "ready")
        for item in lock_where(
            connection, files.c.dataset_id == dataset.id, files.c.sha256.in_(hashes), files.c.status.in_(COUNTED)
        )
    }
    rows = []
    events = []
    for file in unique.values():
        other = present.setdefault(file.sha256, (file.file_id, False))
        duplicate = other[0] != file.file_id
        status: Status = "duplicate" if duplicate else "uploaded"
        rows.append(
            {
                "file_id": file.file_id,
                "dataset_id": dataset.id,
                "name": storable(file.name),
                "raw_uri": file.raw_uri,
                "size": file.size,
                "sha256": file.sha256,
                "status": status,
                "overrides": dict(file.overrides),
                "waiting": duplicate and not other[1],
                "duplicate_of": other[0] if duplicate else None,
            }
        )
        events.append(
            {
                "dataset_id": dataset.id,
                "file_id": file.file_id,
                "actor": "user",
                "who": who,
                "to_status": status,
                "attempt": 0,
                "data": {"duplicate_of": other[0]} if duplicate else {},
            }
        )
    if rows:
        connection.execute(insert(files), rows)
        connection.execute(insert(file_events), events)


def _already_registered(connection: Connection, dataset_id: int, new: Sequence[NewFile]) -> set[str]:
    query = select(files.c.file_id, files.c.dataset_id, files.c.sha256, files.c.raw_uri)
    known = set()
    by_id = {file.file_id: file for file in new}
    for row in connection.execute(query.where(files.c.file_id.in_(by_id))):
        file = by_id[row.file_id]
        if (row.dataset_id, row.sha256, row.raw_uri) != (dataset_id, file.sha256, file.raw_uri):
            raise TransitionRefused(
                f"The upload {file.file_id} ({file.name!r}) cannot be registered: that id belongs to another upload; "
                "give it an id of its own."
            )
        known.add(row.file_id)
    return known


def remove(connection: Connection, file_ids: Sequence[str], target: Removal, *, who: str | None) -> None:
    """Begin to archive or delete files; of those that a worker holds, note the wish.

    Asking twice for the same changes nothing. Raises TransitionRefused where one of the files cannot be removed.
    """
    moves = []
    for locked in lock_files(connection, file_ids).values():
        status = locked.file.status
        if status in _DONE[target] or locked.file.removal_requested == target:
            continue
        if allowed(status, target, "user"):
            moves.append(Move(locked, target, removal_values(status)))
        elif status in ("processing", "failing") or (status, target) == ("archiving", "deleting"):
            wish = {"removal_requested": target, "requested_by": who}
            moves.append(Move(locked, status, wish, data={"requested": target}))
        else:
            raise refuse(locked.file, _REMOVED[target])
    apply(connection, moves, actor="user", who=who)


def read_again(
    connection: Connection,
    file_ids: Sequence[str],
    word: str,
    *,
    overrides: Mapping[str, Any] | None,
    who: str | None,
    again: bool,
) -> None:
    """Put files back to ``uploaded``; ``word`` names the reason, see READ_AGAIN.

    Raises TransitionRefused where a file is in another state, or its bytes are there as another file by now.
    """
    moves = []
    claimed: dict[tuple[int, str], Locked] = {}
    for locked in lock_files(connection, file_ids).values():
        file = locked.file
        if again and file.status == "uploaded":
            continue  # an earlier try of this call has done it
        if file.status not in READ_AGAIN[word] or file.waiting:
            raise refuse(file, word)
        key = (file.dataset_id, file.sha256)
        other = holder(connection, *key, other_than=file.file_id) or claimed.get(key)
        if other is not None:
            raise TransitionRefused(
                f"File {file.file_id} ({file.name!r} of {file.dataset}) cannot be {word}: the same bytes are there "
                f"as file {other.file.file_id} ({other.file.name!r}, {other.file.status}); delete or archive that one "
                "first."
            )
        claimed[key] = locked
        values = fresh()
        if overrides is not None:
            values["overrides"] = dict(overrides)
        data = {"overrides": dict(overrides)} if overrides is not None else {}
        moves.append(Move(locked, "uploaded", values, data=data))
    apply(connection, moves, actor="user", who=who)


def change_settings(
    connection: Connection, name: DatasetName, changes: Mapping[str, Any], *, actor: Actor, who: str | None
) -> Dataset:
    """Set the given keys of the dataset's settings (None removes one); the version rises if anything changed."""
    dataset = ensure_dataset(connection, name)
    current = to_dataset(lock_dataset(connection, dataset.id))
    settings = dict(current.settings)
    for key, value in changes.items():
        if value is None:
            settings.pop(key, None)
        else:
            settings[key] = value
    if settings == current.settings:
        return current
    connection.execute(
        update(datasets)
        .where(datasets.c.id == dataset.id)
        .values(
            settings=settings,
            settings_version=datasets.c.settings_version + 1,
            updated_at=func.clock_timestamp(),
        )
    )
    event = {"dataset_id": dataset.id, "actor": actor, "who": who, "data": {"settings": dict(changes)}}
    connection.execute(insert(file_events).values(event))
    return find_dataset(connection, name)
