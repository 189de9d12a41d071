"""How the work on a claimed file ends, as steps of its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from airflow_lake_provider.errors import TransitionRefused
from airflow_lake_provider.ledger import leases
from airflow_lake_provider.ledger.records import Counts, Outcome
from airflow_lake_provider.ledger.states import COUNTED, Status
from airflow_lake_provider.ledger.transitions import Locked, Move, holder, without_rows

# Who holds a file no longer holds it, and starts from nothing the next time.
_LET_GO: dict[str, Any] = {"stage": None, "lease_token": None, "deaths": 0, "alone": False, "not_before": None}


def written(locked: Locked, result: Outcome, attempt: int) -> bool:
    """Whether an earlier try of the same call, whose answer was lost, has written this outcome already."""
    file = locked.file
    return (
        locked.lease_token is None
        and file.attempt == attempt
        and (
            file.status == result.status
            or (file.status in ("archiving", "deleting") and file.former_status == result.status)
        )
    )


def move(locked: Locked, result: Outcome, *, settings_version: int) -> Move:
    """The step that writes the outcome. Raises ValueError where the outcome lacks what its status wants."""
    values: dict[str, Any] = dict(_LET_GO)
    data: dict[str, Any] = dict(result.data)
    if result.status == "ready":
        if result.counts is None or result.summary is None:
            raise ValueError("a file that is ready has counts and a summary")
        values |= _counted(result.counts)
        values |= {
            "summary": dict(result.summary),
            "settings_version": settings_version,
            "notes": list(result.notes),
            "reason": None,
        }
        data |= {"counts": _counted(result.counts)}
    elif result.status in ("archived", "deleted") or locked.file.status == "failing":
        values |= without_rows()
        values |= {"former_status": None, "pending": list(result.pending)}
        data |= {"pending": list(result.pending)} if result.pending else {}
        if result.status != "failed":
            values["reason"] = None
        if result.status == "deleted":
            values |= {"notes": [], "overrides": {}}
    else:
        if not result.reason:
            raise ValueError(f"a file that is {result.status} has a reason")
        values |= without_rows()
        values |= {"reason": result.reason, "notes": list(result.notes)}
    return Move(locked, result.status, values, data=data)


def put_off(connection: Connection, locked: Locked, reason: str) -> Move:
    """The note that lets a removal wait."""
    deaths = locked.file.deaths + 1
    delay = leases.removal_delay(deaths)
    values = {
        "stage": None,
        "lease_token": None,
        "deaths": deaths,
        "not_before": leases.seconds_from_now_value(connection, delay),
    }
    # The reason why a file failed must outlive the trouble with cleaning up after it.
    if locked.file.status != "failing":
        values["reason"] = reason
    return Move(locked, locked.file.status, values, data={"cause": reason, "again_in_seconds": delay})


def refused(connection: Connection, locked: Locked, reason: str) -> Sequence[Move]:
    """The steps back from a removal that something forbids.

    Another file may have come with the same bytes since. One that was not read yet steps back; where this file was not
    read yet either, it becomes the duplicate. One that was read stands in the way.
    """
    file = locked.file
    former = file.former_status
    if former is None:
        raise TransitionRefused(
            f"File {file.file_id} ({file.name!r} of {file.dataset}) cannot leave its removal: it is {file.status}, and "
            "came from no state it could go back to; put the removal off."
        )
    back: dict[str, Any] = {**_LET_GO, "former_status": None, "reason": reason}
    if former not in COUNTED and former != "duplicate":
        return [Move(locked, former, back)]
    other = holder(connection, file.dataset_id, file.sha256, other_than=file.file_id)
    if former == "duplicate" or (former == "uploaded" and other is not None):
        target: Status = "duplicate"
        back["duplicate_of"] = other.file.file_id if other else None
        back["waiting"] = other is not None and other.file.status != "ready"
        return [Move(locked, target, back)]
    if other is None:
        return [Move(locked, former, back)]
    if other.file.status != "uploaded":
        raise TransitionRefused(
            f"File {file.file_id} ({file.name!r} of {file.dataset}) cannot go back to {former}: the same bytes are "
            f"there as file {other.file.file_id} ({other.file.status}); put the removal off."
        )
    step_back: dict[str, Any] = {"duplicate_of": file.file_id, "waiting": False}
    return [Move(other, "duplicate", step_back), Move(locked, former, back)]


def _counted(counts: Counts) -> dict[str, int]:
    return {
        "records": counts.records,
        "bronze_rows": counts.bronze,
        "silver_rows": counts.silver,
        "gold_rows": counts.gold,
        "rescued": counts.rescued,
    }
