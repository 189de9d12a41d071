from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg

from airflow_lake_provider.ledger import File, Ledger, Notice, resting
from tests.ledger.conftest import COUNTS, ORDERS, new_file

Upload = Callable[..., File]


def test_every_event_wakes_the_listener(ledger: Ledger, upload: Upload) -> None:
    before = upload()
    start = time.monotonic()
    wakes = ledger.listen(poll=20)
    assert next(wakes) == (), "what was sent before is lost, so the ledger is asked once after LISTEN"
    assert time.monotonic() - start < 10
    assert ledger.files() == [before]
    start = time.monotonic()
    file = upload()
    (notice,) = next(wakes)
    assert notice == Notice(file.dataset_id, file.file_id, "uploaded", None)
    assert time.monotonic() - start < 5
    claim = ledger.claim("w", file_ids=[file.file_id])
    assert claim is not None
    claim.event(file.file_id, "bronze")
    seen: list[Notice] = []
    while len(seen) < 2:
        seen += next(wakes)
    assert [(found.status, found.stage) for found in seen] == [("processing", None), ("processing", "bronze")]


def test_it_wakes_up_without_a_notification_too(ledger: Ledger) -> None:
    wakes = ledger.listen(poll=0.05)
    assert [next(wakes) for _ in range(3)] == [(), (), ()]


def test_one_transaction_wakes_once(ledger: Ledger) -> None:
    wakes = ledger.listen(poll=20)
    next(wakes)
    ledger.upload(ORDERS, [new_file() for _ in range(50)])
    seen: list[Notice] = []
    rounds = 0
    while len(seen) < 50:
        seen += next(wakes)
        rounds += 1
    assert rounds <= 3


def test_payloads_of_others_wake_up_and_are_no_notice(ledger: Ledger) -> None:
    wakes = ledger.listen(poll=20)
    next(wakes)
    with psycopg.connect(ledger.conninfo, autocommit=True) as other:
        for payload in ("", "[1]", '{"dataset": "x"}', "null"):
            other.execute("SELECT pg_notify('lake', %s)", (payload,))
    assert next(wakes) == ()


def test_a_listener_whose_connection_is_cut_goes_on(ledger: Ledger, upload: Upload) -> None:
    wakes = ledger.listen(poll=20)
    next(wakes)
    with psycopg.connect(ledger.conninfo, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
    upload()
    assert next(wakes) == (), "after a new LISTEN the ledger is asked again"
    upload()
    assert len(next(wakes)) == 1


def test_waiting_for_files(ledger: Ledger, upload: Upload) -> None:
    first, second = upload("x"), upload("x")

    def work() -> None:
        time.sleep(0.3)
        with ledger.claim("w") as claim:  # type: ignore[union-attr]
            claim.ready(first.file_id, COUNTS, {})

    (unfinished,) = ledger.wait(second.file_id, timeout=0.05)
    assert not resting(unfinished)
    thread = threading.Thread(target=work)
    thread.start()
    done = ledger.wait([first.file_id, second.file_id], timeout=20, poll=20)
    thread.join()
    assert [file.status for file in done] == ["ready", "duplicate"]
    assert all(map(resting, done))
    assert ledger.wait(first.file_id) == done[:1]
