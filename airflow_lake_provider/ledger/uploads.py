"""Uploads on their way: announced before their bytes are stored, so that none can be left in raw storage unknown.

A row says where the bytes will be. Registering the file removes it in the same transaction; one that outlives its time
is abandoned first, after which the file can no longer be registered, and then the bytes are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from airflow_lake_provider.errors import UploadAbandoned
from airflow_lake_provider.ledger.records import NewFile
from airflow_lake_provider.ledger.schema import uploads

_IN_SECONDS = func.clock_timestamp() + bindparam("seconds") * text("interval '1 second'")


def announce(connection: Connection, places: Mapping[str, str], *, seconds: float) -> None:
    """Note where the bytes of uploads will be, by their ids; noting it again changes nothing."""
    rows = [{"file_id": file_id, "raw_uri": uri, "seconds": seconds} for file_id, uri in places.items()]
    if rows:
        connection.execute(insert(uploads).values(expires=_IN_SECONDS).on_conflict_do_nothing(), rows)


def arrived(connection: Connection, new: Sequence[NewFile]) -> None:
    """Remove the rows of uploads that are registered now. Raises UploadAbandoned where one was given up meanwhile."""
    names = {file.file_id: file.name for file in new}
    mine = uploads.c.file_id.in_(names) & ~uploads.c.abandoned
    found: set[str] = set(connection.execute(delete(uploads).where(mine).returning(uploads.c.file_id)).scalars())
    for file_id, name in names.items():
        if file_id not in found:
            raise UploadAbandoned(
                f"The upload of {name!r} took too long and was given up: its bytes are removed from raw storage; "
                "upload it again."
            )


def withdraw(connection: Connection, file_ids: Collection[str]) -> None:
    """Forget uploads of which there is nothing in raw storage."""
    if file_ids:
        connection.execute(delete(uploads).where(uploads.c.file_id.in_(file_ids)))


def abandon(connection: Connection, file_ids: Collection[str] | None, limit: int) -> dict[str, str]:
    """Give up the given uploads, or those whose time is over; where their bytes are, by their ids.

    Those that were registered are not among them; those that were given up before, and whose bytes are not known to be
    gone, are.
    """
    now = func.clock_timestamp()
    which = uploads.c.expires < now if file_ids is None else uploads.c.file_id.in_(file_ids)
    # One that is being registered at this moment is locked, and no longer there once the lock is free.
    due = select(uploads.c.file_id).where(which).order_by(uploads.c.expires).limit(limit)
    # Its time is over from now on, so that it comes again until its bytes are gone.
    given_up = update(uploads).where(uploads.c.file_id.in_(due.with_for_update(skip_locked=True)))
    given_up = given_up.values(abandoned=True, expires=func.least(uploads.c.expires, now))
    rows = connection.execute(given_up.returning(uploads.c.file_id, uploads.c.raw_uri))
    return {row.file_id: row.raw_uri for row in rows}
