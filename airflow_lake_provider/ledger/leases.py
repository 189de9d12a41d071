"""Leasing a dataset and its files, by the database's clock alone.

One worker holds a dataset at a time. A lease that expired may be taken by anyone; whoever takes it first puts the files
of the old one back, so an old worker's token is worth nothing from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, and_, exists, func, not_, or_, select, update

from airflow_lake_provider.errors import LeaseLost
from airflow_lake_provider.ledger.records import Kind
from airflow_lake_provider.ledger.schema import datasets, files
from airflow_lake_provider.ledger.states import REMOVALS, Actor
from airflow_lake_provider.ledger.transitions import Locked, Move, apply, lock_where

#: First and longest pause, in seconds, before a removal whose job died or failed is tried again.
FIRST_DELAY: Final = 10.0
LONGEST_DELAY: Final = 3600.0

_NOW: Final = func.clock_timestamp()
FREE: Final = or_(datasets.c.lease_token.is_(None), datasets.c.lease_expires <= _NOW)
DUE: Final = or_(files.c.not_before.is_(None), files.c.not_before <= _NOW)
IS_REMOVAL: Final = files.c.status.in_(REMOVALS)


def seconds_from_now(seconds: float) -> Any:
    """A point in time by the database's clock."""
    return _NOW + func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def removal_delay(deaths: int) -> float:
    """How many seconds a removal waits after it has failed ``deaths`` times in a row."""
    return float(min(FIRST_DELAY * 2.0 ** min(max(deaths - 1, 0), 20), LONGEST_DELAY))


def next_dataset(
    connection: Connection, *, name: str | None, kind: Kind | None, file_ids: Collection[str] | None
) -> Row[Any] | None:
    """Lock the dataset whose turn it is among those that are free and have work; None where there is none.

    The turn goes to the one that was served longest ago, so a dataset with very many files holds up no other.
    """
    mine = files.c.dataset_id == datasets.c.id
    chosen = [files.c.file_id.in_(file_ids)] if file_ids is not None else []
    removal = exists().where(mine, IS_REMOVAL, DUE, *chosen)
    # Files in "processing" under a free lease are leftovers of a worker that is gone.
    ingest = exists().where(mine, files.c.status.in_(("uploaded", "processing")), *chosen)
    work = {
        None: or_(removal, ingest),
        "removal": removal,
        "ingest": and_(ingest, not_(exists().where(mine, IS_REMOVAL, DUE))),
    }[kind]
    query: Select[Any] = select(datasets).where(FREE, work)
    if name is None:
        query = query.order_by(datasets.c.claimed_at.asc().nulls_first(), datasets.c.id).limit(1)
    else:
        query = query.where(datasets.c.table_name == name)
    locked = query.with_for_update(of=datasets, key_share=True, skip_locked=name is None)
    return connection.execute(locked).one_or_none()


def take(
    connection: Connection, dataset_id: int, *, worker: str, purpose: str, token: str, seconds: float, max_attempts: int
) -> None:
    """Make the lease of a dataset, whose row is locked and free, ours; the files of an expired one go back."""
    put_back_stale(connection, dataset_id, actor="worker", who=worker, max_attempts=max_attempts)
    connection.execute(
        update(datasets)
        .where(datasets.c.id == dataset_id)
        .values(
            lease_owner=worker,
            lease_purpose=purpose,
            lease_token=token,
            lease_attempt=datasets.c.lease_attempt + 1,
            lease_expires=seconds_from_now(seconds),
            claimed_at=_NOW,
        )
    )


def renew(connection: Connection, dataset_id: int, *, token: str, seconds: float) -> None:
    """Extend the lease, also one that expired while nobody took it. Raises LeaseLost."""
    statement = (
        update(datasets)
        .where(datasets.c.id == dataset_id, datasets.c.lease_token == token)
        .values(lease_expires=seconds_from_now(seconds))
    )
    if connection.execute(statement).rowcount != 1:
        raise lost(connection, dataset_id)


def hold(connection: Connection, dataset_id: int, *, token: str) -> None:
    """See that the lease is still the one of ``token``, and keep it so until the transaction ends. Raises LeaseLost."""
    query = select(datasets.c.id).where(datasets.c.id == dataset_id, datasets.c.lease_token == token)
    if connection.execute(query.with_for_update(read=True)).one_or_none() is None:
        raise lost(connection, dataset_id)


def free(connection: Connection, dataset_id: int, *, token: str | None = None) -> None:
    """End the lease, if it is still the one of ``token`` (None: whichever it is)."""
    statement = update(datasets).where(datasets.c.id == dataset_id)
    if token is not None:
        statement = statement.where(datasets.c.lease_token == token)
    connection.execute(statement.values(lease_owner=None, lease_purpose=None, lease_token=None, lease_expires=None))


def lost(connection: Connection, dataset_id: int) -> LeaseLost:
    """The error for a lease that is no longer ours, naming who has it now."""
    row = connection.execute(select(datasets).where(datasets.c.id == dataset_id)).one()
    name = f"{row.vendor}/{row.project}/{row.folder}"
    now = f"{row.lease_owner} holds it" if row.lease_token is not None else "nobody holds it"
    return LeaseLost(f"The lease of the dataset {name} was lost, now {now}: stop, and write nothing more.")


def put_back_stale(
    connection: Connection, dataset_id: int, *, actor: Actor, who: str | None, max_attempts: int
) -> list[str]:
    """Put back what a worker that is gone left in its hands, in a locked dataset whose lease is free."""
    held = or_(files.c.status == "processing", and_(IS_REMOVAL, files.c.lease_token.is_not(None)))
    stale = lock_where(connection, files.c.dataset_id == dataset_id, held)
    put_back(connection, stale, reason="the lease expired", died=True, actor=actor, who=who, max_attempts=max_attempts)
    return [item.file.file_id for item in stale]


def put_back(
    connection: Connection,
    stale: Iterable[Locked],
    *,
    reason: str,
    died: bool,
    actor: Actor,
    who: str | None,
    max_attempts: int,
) -> None:
    """Give claimed files back to be claimed again.

    Where their job ``died`` with many files, each is tried alone from now on, since any of them may be to blame; a
    death alone counts, and ``max_attempts`` of them end in ``failing``. A removal is never given up, it waits longer
    each time.
    """
    moves = []
    for item in stale:
        removal = item.file.status in REMOVALS
        values: dict[str, Any] = {"stage": None, "lease_token": None}
        data: dict[str, Any] = {"cause": reason, "died": died}
        if died and item.batch > 1:
            values["alone"] = True
        elif died:
            values["deaths"] = item.file.deaths + 1
        if removal:
            if died and item.batch <= 1:
                values["not_before"] = seconds_from_now_value(connection, removal_delay(values["deaths"]))
            moves.append(Move(item, item.file.status, values, data=data))
        elif values.get("deaths", 0) >= max_attempts:
            values["reason"] = (
                f"The job of this file alone died {values['deaths']} times; the last time {_clause(reason)}."
            )
            values |= {"deaths": 0, "alone": False}
            moves.append(Move(item, "failing", values, data=data))
        else:
            moves.append(Move(item, "uploaded", values, data=data))
    apply(connection, moves, actor=actor, who=who)


def _clause(sentence: str) -> str:
    first, _, rest = sentence.removesuffix(".").partition(" ")
    return f"{first.lower() if first == 'The' else first} {rest}"


def seconds_from_now_value(connection: Connection, seconds: float) -> Any:
    """The same point in time as a value, for statements that take many rows."""
    return connection.execute(select(seconds_from_now(seconds))).scalar_one()


def sweep(connection: Connection, *, who: str | None, max_attempts: int) -> list[str]:
    """End every expired lease and give its files back; returns their ids."""
    query = select(datasets.c.id).where(datasets.c.lease_token.is_not(None), datasets.c.lease_expires <= _NOW)
    locked = query.order_by(datasets.c.id).with_for_update(key_share=True, skip_locked=True)
    expired: list[int] = list(connection.execute(locked).scalars())
    back: list[str] = []
    for dataset_id in expired:
        back += put_back_stale(connection, dataset_id, actor="scheduler", who=who, max_attempts=max_attempts)
        free(connection, dataset_id)
    return back


def unfinished(connection: Connection, *, table_name: str | None) -> int:
    """How many files are waiting or being worked on; a removal that is put off is not, until it is due."""
    waiting = or_(
        files.c.status.in_(("uploaded", "processing")), and_(IS_REMOVAL, or_(DUE, files.c.lease_token.is_not(None)))
    )
    query = select(func.count()).select_from(files.join(datasets)).where(waiting)
    if table_name is not None:
        query = query.where(datasets.c.table_name == table_name)
    return int(connection.execute(query).scalar_one())


def take_files(
    connection: Connection,
    dataset_id: int,
    *,
    worker: str,
    token: str,
    kind: Kind | None,
    max_files: int,
    max_bytes: int | None,
    file_ids: Collection[str] | None,
) -> bool:
    """Claim files of the dataset that ``token`` has leased: removals that are due, else uploads, oldest first."""
    conditions: list[Any] = [files.c.dataset_id == dataset_id]
    if file_ids is not None:
        conditions.append(files.c.file_id.in_(file_ids))
    chosen: list[Locked] = []
    if kind != "ingest":
        chosen = lock_where(connection, *conditions, IS_REMOVAL, DUE, limit=max_files, skip=True)
    if not chosen and kind != "removal" and not _removal_due(connection, dataset_id):
        chosen = lock_where(connection, *conditions, files.c.status == "uploaded", limit=max_files, skip=True)
    chosen = _batch(chosen, max_bytes)
    moves = []
    for item in chosen:
        values = {
            "attempt": item.file.attempt + 1,
            "lease_token": token,
            "batch": len(chosen),
            "stage": None,
            "not_before": None,
        }
        target = item.file.status if item.file.status in REMOVALS else "processing"
        moves.append(Move(item, target, values, data={"claimed_with": len(chosen)}))
    apply(connection, moves, actor="worker", who=worker)
    return bool(chosen)


def _removal_due(connection: Connection, dataset_id: int) -> bool:
    query = select(exists().where(files.c.dataset_id == dataset_id, IS_REMOVAL, DUE))
    return bool(connection.execute(query).scalar_one())


def _batch(candidates: list[Locked], max_bytes: int | None) -> list[Locked]:
    """The files that go into one claim: one that has to be tried alone, or those that need not, up to the size."""
    if candidates and candidates[0].alone:
        return candidates[:1]
    batch: list[Locked] = []
    size = 0
    for item in candidates:
        if item.alone:
            continue
        size += item.file.size
        if batch and max_bytes is not None and size > max_bytes:
            break
        batch.append(item)
    return batch
