"""Waking up: LISTEN on the ledger's channel, then look, then wait.

A notification that was sent while nobody listened is lost, so it never carries work: what there is to do is always
asked of the ledger, after LISTEN and after each wake-up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import psycopg

from airflow_lake_provider.ledger.database import Database, connect
from airflow_lake_provider.ledger.records import Notice
from airflow_lake_provider.ledger.schema import CHANNEL


def listen(database: Database, *, poll: float) -> Iterator[tuple[Notice, ...]]:
    """Yield once after LISTEN is in force, then at each wake-up: the notices that came, or none after ``poll`` seconds.

    Look at the ledger each time it yields. A connection that breaks is replaced; LedgerUnavailable is raised where that
    takes longer than the ledger waits for an outage.
    """
    while True:
        connection = database.patiently(lambda again: _listening(database))
        with closing(connection):
            yield ()
            try:
                while True:
                    notices = [_notice(found.payload) for found in connection.notifies(timeout=poll, stop_after=1)]
                    # What else has come already is part of the same wake-up.
                    notices += [_notice(found.payload) for found in connection.notifies(timeout=0)]
                    yield tuple(notice for notice in notices if notice is not None)
            except psycopg.OperationalError:
                continue


def _listening(database: Database) -> psycopg.Connection[tuple[object, ...]]:
    connection = connect(database.conninfo, autocommit=True)
    try:
        connection.execute(f"LISTEN {CHANNEL}")
    except BaseException:
        connection.close()
        raise
    return connection


def _notice(payload: str) -> Notice | None:
    try:
        found = json.loads(payload)
        return Notice(int(found["dataset"]), found.get("file"), found.get("status"), found.get("stage"))
    except (ValueError, KeyError, TypeError, AttributeError):
        # Anyone who may connect can notify; a payload that is not ours still wakes up.
        return None
