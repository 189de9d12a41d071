"""Taking files from state to state: one guarded UPDATE and one event each, and what follows from it.

Every writer first locks the dataset's row, so writers of one dataset never overlap and the rules about equal bytes
hold without races. The partial unique index and the guards in each UPDATE would catch what slipped by.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import LeaseLost, NotFound, TransitionRefused
from airflow_lake_provider.ledger.database import storable
from airflow_lake_provider.ledger.records import Counts, Dataset, File, LeaseInfo
from airflow_lake_provider.ledger.schema import datasets, file_events, files
from airflow_lake_provider.ledger.states import COUNTED, RESTING, Actor, Status, allowed, targets

_FILE: Final = select(files, datasets.c.vendor, datasets.c.project, datasets.c.folder).join_from(files, datasets)
_NO_COUNTS: Final[Mapping[str, None]] = dict.fromkeys(
    ("records", "bronze_rows", "silver_rows", "gold_rows", "rescued", "summary", "settings_version")
)
# What a user's decision to read a file (again) wipes out.
_FRESH: Final[Mapping[str, Any]] = {
    "stage": None,
    "reason": None,
    "deaths": 0,
    "alone": False,
    "lease_token": None,
    "former_status": None,
    "removal_requested": None,
    "requested_by": None,
    "not_before": None,
    "waiting": False,
    "duplicate_of": None,
    "pending": [],
}


@dataclass(frozen=True, slots=True)
class Locked:
    """A file whose row is locked by this transaction, with what only the guards look at."""

    file: File
    lease_token: str | None
    alone: bool
    batch: int
    requested_by: str | None


@dataclass(frozen=True, slots=True)
class Move:
    """A step of one locked file; a ``target`` equal to its state is a note, which writes values and an event alone."""

    locked: Locked
    target: Status
    values: Mapping[str, Any] = field(default_factory=dict)
    stage: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def file_select() -> Any:
    """The SELECT that ``to_file`` reads."""
    return _FILE


def to_file(row: Row[Any]) -> File:
    counts = None
    if row.records is not None:
        counts = Counts(row.records, row.bronze_rows or 0, row.silver_rows or 0, row.gold_rows or 0, row.rescued or 0)
    return File(
        file_id=row.file_id,
        dataset_id=row.dataset_id,
        dataset=DatasetName(row.vendor, row.project, row.folder),
        seq=row.seq,
        name=row.name,
        raw_uri=row.raw_uri,
        size=row.size,
        sha256=row.sha256,
        status=row.status,
        stage=row.stage,
        attempt=row.attempt,
        deaths=row.deaths,
        waiting=row.waiting,
        duplicate_of=row.duplicate_of,
        former_status=row.former_status,
        removal_requested=row.removal_requested,
        pending=tuple(row.pending),
        counts=counts,
        overrides=row.overrides,
        summary=row.summary,
        notes=row.notes,
        reason=row.reason,
        settings_version=row.settings_version,
        not_before=row.not_before,
        uploaded_at=row.uploaded_at,
        updated_at=row.updated_at,
    )


def to_dataset(row: Row[Any]) -> Dataset:
    lease = None
    if row.lease_token is not None:
        lease = LeaseInfo(row.lease_owner, row.lease_purpose, row.lease_attempt, row.lease_expires)
    return Dataset(
        id=row.id,
        name=DatasetName(row.vendor, row.project, row.folder),
        settings=row.settings,
        settings_version=row.settings_version,
        lease=lease,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def lock_dataset(connection: Connection, dataset_id: int) -> Row[Any]:
    """Lock the dataset's row until the end of the transaction; whatever writes its files does this first."""
    # NO KEY: inserting a file takes a key share lock on this row, which need not wait.
    query = select(datasets).where(datasets.c.id == dataset_id).with_for_update(key_share=True)
    return connection.execute(query).one()


def lock_files(connection: Connection, file_ids: Collection[str]) -> dict[str, Locked]:
    """Lock files with their datasets, in an order that all writers share. Raises NotFound, naming those missing."""
    wanted = list(dict.fromkeys(file_ids))
    of = select(files.c.dataset_id).where(files.c.file_id.in_(wanted)).distinct()
    owners: list[int] = sorted(connection.execute(of).scalars())
    for dataset_id in owners:
        lock_dataset(connection, dataset_id)
    found = {item.file.file_id: item for item in lock_where(connection, files.c.file_id.in_(wanted))}
    missing = [file_id for file_id in wanted if file_id not in found]
    if missing:
        raise NotFound(f"The ledger has no file {', '.join(missing[:5])}: list the files to see which there are.")
    return {file_id: found[file_id] for file_id in wanted}


def lock_where(connection: Connection, *conditions: Any, limit: int | None = None, skip: bool = False) -> list[Locked]:
    """Lock the files that meet all conditions, oldest first; ``skip`` passes over those that someone else holds."""
    query = _FILE.where(*conditions).order_by(files.c.seq).limit(limit).with_for_update(of=files, skip_locked=skip)
    return [
        Locked(to_file(row), row.lease_token, row.alone, row.batch, row.requested_by)
        for row in connection.execute(query)
    ]


def fresh() -> dict[str, Any]:
    """Values of a file that is to be read as if for the first time; its attempt number keeps rising."""
    return dict(_FRESH)


def without_rows() -> dict[str, Any]:
    """Values of a file of which nothing is in any table."""
    return dict(_NO_COUNTS)


def removal_values(source: Status) -> dict[str, Any]:
    """Values of a file whose removal begins."""
    return {**_FRESH, "former_status": source}


def refuse(file: File, wanted: str, *, actor: Actor = "user") -> TransitionRefused:
    """The error for a step that the table of transitions does not have."""
    could = list(dict.fromkeys(targets(file.status, actor)))
    state = f"{file.status}, being read by a worker" if file.status == "processing" else file.status
    return TransitionRefused(
        f"File {file.file_id} ({file.name!r} of {file.dataset}) cannot be {wanted}: it is {state}"
        + (f", from where it can go to {', '.join(could)}." if could else ", and nothing can be done from there.")
    )


def apply(connection: Connection, moves: Sequence[Move], *, actor: Actor, who: str | None) -> None:
    """Take the files where ``moves`` say, with all that follows in the same transaction.

    What follows: a removal that was asked for meanwhile begins, duplicates of a file that became ready are final, and
    the oldest waiting duplicate of a file that left takes its place.
    """
    _write(connection, moves, actor=actor, who=who)
    steps = [move for move in moves if move.target != move.locked.file.status]
    ended = {move.locked.file.file_id: move.target for move in steps}
    for requester, group in groupby(_requested(connection, steps), key=lambda move: move.locked.requested_by):
        wishes = list(group)
        _write(connection, wishes, actor="user", who=requester)
        ended.update((move.locked.file.file_id, move.target) for move in wishes)
    before = {move.locked.file.file_id: move.locked.file for move in steps}
    ready = [file_id for file_id, target in ended.items() if target == "ready"]
    if ready:
        _finalise(connection, ready, actor=actor, who=who)
    left = [file for file_id, file in before.items() if file.status in COUNTED and ended[file_id] not in COUNTED]
    if left:
        _take_over(connection, left, actor=actor, who=who)


def _requested(connection: Connection, steps: Sequence[Move]) -> list[Move]:
    asked = [move.locked.file.file_id for move in steps if move.locked.file.removal_requested is not None]
    if not asked:
        return []
    follow = []
    for locked in lock_where(connection, files.c.file_id.in_(asked)):
        target = locked.file.removal_requested
        if target is not None and allowed(locked.file.status, target, "user"):
            follow.append(Move(locked, target, removal_values(locked.file.status)))
    return sorted(follow, key=lambda move: (move.locked.requested_by or "", move.locked.file.seq))


def _finalise(connection: Connection, ready: Collection[str], *, actor: Actor, who: str | None) -> None:
    waiting = lock_where(connection, files.c.duplicate_of.in_(ready), files.c.waiting)
    notes = [Move(item, item.file.status, {"waiting": False}, data={"final": True}) for item in waiting]
    _write(connection, notes, actor=actor, who=who)


def _take_over(connection: Connection, left: Sequence[File], *, actor: Actor, who: str | None) -> None:
    waiting: dict[tuple[int, str], list[Locked]] = {}
    conditions = (
        files.c.dataset_id.in_({file.dataset_id for file in left}),
        files.c.sha256.in_({file.sha256 for file in left}),
        files.c.waiting,
    )
    for item in lock_where(connection, *conditions):
        waiting.setdefault((item.file.dataset_id, item.file.sha256), []).append(item)
    moves = []
    for file in left if waiting else ():
        queue = waiting.get((file.dataset_id, file.sha256))
        if not queue:
            continue
        present = holder(connection, file.dataset_id, file.sha256)
        if present is not None:
            # A file that came back from a refused removal has the place already.
            values = {"duplicate_of": present.file.file_id, "waiting": present.file.status != "ready"}
            moves += [Move(item, item.file.status, values) for item in queue]
            continue
        heir = queue[0]
        data = {"took_over_from": file.file_id}
        moves.append(Move(heir, "uploaded", {"waiting": False, "duplicate_of": None}, data=data))
        moves += [Move(item, item.file.status, {"duplicate_of": heir.file.file_id}) for item in queue[1:]]
    _write(connection, moves, actor=actor, who=who)


def holder(connection: Connection, dataset_id: int, sha256: str, *, other_than: str | None = None) -> Locked | None:
    """The file that counts as having these bytes in the dataset, locked; None where there is none."""
    conditions = [files.c.dataset_id == dataset_id, files.c.sha256 == sha256, files.c.status.in_(COUNTED)]
    if other_than is not None:
        conditions.append(files.c.file_id != other_than)
    return next(iter(lock_where(connection, *conditions)), None)


def check_token(locked: Locked, token: str, attempt: int) -> None:
    """Raise LeaseLost unless the file is still in the hands of this lease and attempt."""
    file = locked.file
    if locked.lease_token != token or file.attempt != attempt:
        raise LeaseLost(
            f"File {file.file_id} ({file.name!r} of {file.dataset}) was taken from attempt {attempt}: it is "
            f"{file.status} at attempt {file.attempt}; nothing of the earlier attempt may be written any more."
        )


def _write(connection: Connection, moves: Sequence[Move], *, actor: Actor, who: str | None) -> None:
    if not moves:
        return
    events = []
    for move in moves:
        file = move.locked.file
        if move.target != file.status and not allowed(file.status, move.target, actor):
            raise refuse(file, move.target, actor=actor)
        events.append(
            {
                "dataset_id": file.dataset_id,
                "file_id": file.file_id,
                "actor": actor,
                "who": who,
                "from_status": file.status,
                "to_status": move.target,
                "stage": move.stage,
                "attempt": move.values.get("attempt", file.attempt),
                "data": _event_data(move),
            }
        )
    # Leaving first, arriving second: a file may take the place in the unique index that another one gives up.
    ordered = sorted(moves, key=lambda move: (move.target in COUNTED, tuple(move.values)))
    for (_, names), group in groupby(ordered, key=lambda move: (move.target in COUNTED, tuple(move.values))):
        _update(connection, names, list(group))
    connection.execute(insert(file_events), events)


def _event_data(move: Move) -> dict[str, Any]:
    data = dict(move.data)
    if move.values.get("reason") is not None:
        data["reason"] = move.values["reason"]
    return data


def _update(connection: Connection, names: Iterable[str], moves: Sequence[Move]) -> None:
    statement = (
        update(files)
        .where(
            files.c.file_id == bindparam("w_file_id"),
            files.c.status == bindparam("w_status"),
            files.c.attempt == bindparam("w_attempt"),
            files.c.lease_token.is_not_distinct_from(bindparam("w_token", type_=files.c.lease_token.type)),
        )
        .values(
            status=bindparam("s_status"),
            updated_at=func.clock_timestamp(),
            **{name: bindparam(f"s_{name}", type_=files.c[name].type) for name in names},
        )
    )
    rows = [
        {
            "w_file_id": move.locked.file.file_id,
            "w_status": move.locked.file.status,
            "w_attempt": move.locked.file.attempt,
            "w_token": move.locked.lease_token,
            "s_status": move.target,
            **{f"s_{name}": _column_value(name, move.values[name]) for name in names},
        }
        for move in moves
    ]
    changed = connection.execute(statement, rows).rowcount
    if changed != len(rows):
        first = moves[0].locked.file
        raise TransitionRefused(
            f"{len(rows) - changed} of {len(rows)} files of {first.dataset}, {first.file_id} among them, changed "
            "while this was being written, and nothing was written: look at their state and try again."
        )


def _column_value(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    return list(value) if name in ("pending", "notes") else value


def resting(file: File) -> bool:
    """Whether nothing will happen to the file unless somebody asks for it."""
    return file.status in RESTING and not file.waiting and file.removal_requested is None
