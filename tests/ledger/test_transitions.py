"""Every step that the table has is taken, every other one is refused, by the database as it really is."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from airflow_lake_provider.errors import NotFound, TransitionRefused
from airflow_lake_provider.ledger import File, Ledger
from airflow_lake_provider.ledger.schema import file_events, files
from airflow_lake_provider.ledger.states import ACTORS, STATUSES, Status, allowed
from airflow_lake_provider.ledger.transitions import Move, apply, lock_files, removal_values
from tests.ledger.conftest import ORDERS, new_file


def _in_transaction(ledger: Ledger, work: Callable[[Connection], None]) -> None:
    ledger._database.run(lambda connection, again: work(connection))


def _file_in(connection: Connection, dataset_id: int, status: Status) -> str:
    new = new_file()
    row = {
        "file_id": new.file_id,
        "dataset_id": dataset_id,
        "name": new.name,
        "raw_uri": new.raw_uri,
        "size": new.size,
        "sha256": new.sha256,
        "status": status,
    }
    connection.execute(insert(files), [row])
    return new.file_id


def test_exactly_the_steps_of_the_table_are_taken(ledger: Ledger) -> None:
    dataset = ledger.ensure_dataset(ORDERS)

    def work(connection: Connection) -> None:
        in_state = {status: _file_in(connection, dataset.id, status) for status in STATUSES}
        locked = lock_files(connection, list(in_state.values()))
        for source, target, actor in (
            (*pair, actor) for pair in itertools.permutations(STATUSES, 2) for actor in ACTORS
        ):
            file_id = in_state[source]
            move = Move(locked[file_id], target)
            if not allowed(source, target, actor):
                with pytest.raises(TransitionRefused, match=file_id):
                    apply(connection, [move], actor=actor, who="x")
                continue
            with connection.begin_nested() as savepoint:
                apply(connection, [move], actor=actor, who="x")
                assert lock_files(connection, [file_id])[file_id].file.status == target
                (event,) = connection.execute(select(file_events).where(file_events.c.file_id == file_id))
                assert (event.from_status, event.to_status, event.actor) == (source, target, actor)
                savepoint.rollback()
        assert lock_files(connection, list(in_state.values())) == locked, "nothing that was refused left a trace"

    _in_transaction(ledger, work)


def test_the_table_and_the_database_name_the_same_states(ledger: Ledger) -> None:
    dataset = ledger.ensure_dataset(ORDERS)

    def work(connection: Connection) -> None:
        for status in STATUSES:
            _file_in(connection, dataset.id, status)
        with pytest.raises(IntegrityError, match="files_status_check"), connection.begin_nested():
            _file_in(connection, dataset.id, "lost")  # type: ignore[arg-type]

    _in_transaction(ledger, work)
    assert all(number == 1 for number in ledger.status_counts(ORDERS).values())


def test_the_guard_refuses_a_file_that_changed_behind_our_back(ledger: Ledger, upload: Callable[..., File]) -> None:
    first, second = upload(), upload()

    def work(connection: Connection) -> None:
        locked = lock_files(connection, [first.file_id, second.file_id])
        connection.execute(update(files).where(files.c.file_id == second.file_id).values(attempt=7))
        moves = [Move(item, "deleting", removal_values("uploaded")) for item in locked.values()]
        apply(connection, moves, actor="user", who=None)

    with pytest.raises(TransitionRefused, match="1 of 2 files"):
        _in_transaction(ledger, work)
    assert ledger.file(first.file_id).status == "uploaded", "nothing of the transaction remains"
    assert len(ledger.events(first.file_id)) == 1


def test_events_cannot_be_rewritten_but_old_ones_can_go(ledger: Ledger, upload: Callable[..., File]) -> None:
    file = upload()

    def work(connection: Connection) -> None:
        with pytest.raises(DBAPIError, match="cannot be changed"), connection.begin_nested():
            connection.execute(update(file_events).values(who="nobody"))
        connection.execute(text("DELETE FROM lake.file_events WHERE at < clock_timestamp()"))
        assert connection.execute(select(func.count()).select_from(file_events)).scalar_one() == 0

    _in_transaction(ledger, work)
    assert ledger.file(file.file_id) == file


def test_refusals_name_the_file_its_state_and_what_is_allowed(ledger: Ledger, upload: Callable[..., File]) -> None:
    file = upload()
    with pytest.raises(TransitionRefused) as refused:
        ledger.restore(file.file_id)
    message = str(refused.value)
    assert file.file_id in message
    assert "acme/shop/orders" in message
    assert "it is uploaded" in message
    assert "archiving, deleting" in message


def test_a_file_that_is_not_there_is_named(ledger: Ledger, upload: Callable[..., File]) -> None:
    file = upload()
    with pytest.raises(NotFound, match="nowhere"):
        ledger.delete([file.file_id, "nowhere"])
    assert ledger.file(file.file_id).status == "uploaded"
    with pytest.raises(NotFound, match="nowhere"):
        ledger.file("nowhere")
