from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from sqlalchemy import func, update

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import LakeError, LeaseLost, NotFound, TransitionRefused
from airflow_lake_provider.ledger import Claim, File, Ledger, Outcome
from airflow_lake_provider.ledger.leases import removal_delay
from airflow_lake_provider.ledger.schema import datasets, files
from tests.ledger.conftest import COUNTS, ORDERS, new_file

Upload = Callable[..., File]
CUSTOMERS = DatasetName("acme", "shop", "customers")


def _claim(ledger: Ledger, worker: str = "w", **how: object) -> Claim:
    claim = ledger.claim(worker, **how)  # type: ignore[arg-type]
    assert claim is not None
    return claim


def _ids(claim: Claim) -> list[str]:
    return [file.file_id for file in claim.files]


def _expire(ledger: Ledger) -> None:
    """Let the time of every lease run out."""
    past = func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, 1)
    ledger._database.run(
        lambda connection, again: connection.execute(
            update(datasets).where(datasets.c.lease_token.is_not(None)).values(lease_expires=past)
        )
    )


def _due(ledger: Ledger) -> None:
    ledger._database.run(lambda connection, again: connection.execute(update(files).values(not_before=None)))


def test_a_claim_leases_the_dataset_and_takes_its_files(ledger: Ledger, upload: Upload) -> None:
    first, second = upload(overrides={"delimiter": "|"}), upload()
    ledger.change_settings(ORDERS, {"header": True})
    claim = _claim(ledger, "worker 1", lease_seconds=30)
    assert _ids(claim) == [first.file_id, second.file_id]
    assert (claim.kind, claim.dataset.name, claim.dataset.settings) == ("ingest", ORDERS, {"header": True})
    assert [(file.status, file.attempt, file.overrides) for file in claim.files] == [
        ("processing", 1, {"delimiter": "|"}),
        ("processing", 1, {}),
    ]
    lease = ledger.dataset(ORDERS).lease
    assert lease is not None
    assert (lease.owner, lease.attempt) == ("worker 1", 1)
    third = upload()
    assert ledger.claim("worker 2") is None, "one worker for each dataset"
    claim.finish([Outcome(file_id, "ready", counts=COUNTS, summary={}) for file_id in _ids(claim)])
    claim.release()
    assert ledger.dataset(ORDERS).lease is None
    assert _ids(_claim(ledger)) == [third.file_id]


def test_nothing_to_do(ledger: Ledger, upload: Upload) -> None:
    assert ledger.claim("w") is None
    file = upload()
    assert ledger.claim("w", dataset=CUSTOMERS) is None
    assert ledger.claim("w", file_ids=["another"]) is None
    assert ledger.claim("w", kind="removal") is None
    assert _ids(_claim(ledger, dataset=ORDERS, kind="ingest", file_ids=[file.file_id])) == [file.file_id]


def test_a_claim_has_a_size(ledger: Ledger) -> None:
    uploaded = ledger.upload(ORDERS, [new_file(size=size) for size in (500, 30, 30, 50, 10)])
    ids = [file.file_id for file in uploaded]
    for expected, files_, bytes_ in ((ids[:1], 500, 100), (ids[1:3], 500, 100), (ids[3:4], 1, None)):
        claim = _claim(ledger, max_files=files_, max_bytes=bytes_)
        assert _ids(claim) == expected
        claim.finish([Outcome(file_id, "ready", counts=COUNTS, summary={}) for file_id in expected])
        claim.release()


def test_removals_come_before_uploads(ledger: Ledger, upload: Upload) -> None:
    first, second, third = upload(), upload(), upload()
    ledger.archive(third.file_id)
    assert ledger.claim("w", kind="ingest") is None
    claim = _claim(ledger)
    assert (claim.kind, _ids(claim)) == ("removal", [third.file_id])
    assert claim.files[0].attempt == 1
    claim.removed(third.file_id)
    claim.release()
    claim = _claim(ledger)
    assert (claim.kind, _ids(claim)) == ("ingest", [first.file_id, second.file_id])


def test_datasets_take_turns(ledger: Ledger, upload: Upload) -> None:
    for _ in range(4):
        upload()
    small = upload(dataset=CUSTOMERS)
    served = []
    for _ in range(4):
        claim = _claim(ledger, max_files=1)
        served.append(claim.dataset.name.folder)
        claim.ready(_ids(claim)[0], COUNTS, {})
        claim.release()
    assert served == ["orders", "customers", "orders", "orders"]
    assert ledger.file(small.file_id).status == "ready"


def test_progress_and_outcomes_are_written(ledger: Ledger, upload: Upload) -> None:
    file = upload()
    claim = _claim(ledger)
    claim.event(file.file_id, "bronze", {"rows": 10})
    assert ledger.file(file.file_id).stage == "bronze"
    claim.ready(file.file_id, COUNTS, {"id": {"count": 10}}, [{"dialect": ","}])
    ready = ledger.file(file.file_id)
    assert (ready.status, ready.stage, ready.counts) == ("ready", None, COUNTS)
    assert (ready.summary, ready.notes) == ({"id": {"count": 10}}, [{"dialect": ","}])
    assert ledger.present_files(ORDERS) == [ready]
    events = ledger.events(file.file_id)
    assert [(event.to_status, event.stage, event.attempt) for event in events] == [
        ("uploaded", None, 0),
        ("processing", None, 1),
        ("processing", "bronze", 1),
        ("ready", None, 1),
    ]
    assert events[2].data == {"rows": 10}
    assert events[3].data["counts"]["records"] == 10
    assert {event.who for event in events[1:]} == {"w"}


def test_outcomes_are_written_all_or_none(ledger: Ledger, upload: Upload) -> None:
    first, second = upload(), upload()
    claim = _claim(ledger)
    claim.fail(first.file_id, "Line 3: no")
    outcomes = [
        Outcome(second.file_id, "ready", counts=COUNTS, summary={}),
        Outcome(first.file_id, "ready", counts=COUNTS, summary={}),
    ]
    with pytest.raises(TransitionRefused, match=f"{first.file_id}.*finished already: it is failed"):
        claim.finish(outcomes)
    assert ledger.file(second.file_id).status == "processing"
    assert ledger.file(first.file_id).reason == "Line 3: no"
    with pytest.raises(ValueError, match="has a reason"):
        claim.finish([Outcome(second.file_id, "failed")])
    with pytest.raises(ValueError, match="counts and a summary"):
        claim.finish([Outcome(second.file_id, "ready")])
    with pytest.raises(ValueError, match="one outcome"):
        claim.finish(outcomes[:1] * 2)
    with pytest.raises(TransitionRefused, match="cannot be archived"):
        claim.finish([Outcome(second.file_id, "archived")])
    with pytest.raises(TransitionRefused, match="not one of this claim's"):
        claim.ready(upload().file_id, COUNTS, {})


def test_release_hands_back_what_is_left(ledger: Ledger, upload: Upload) -> None:
    first, second = upload(), upload()
    with _claim(ledger) as claim:
        claim.ready(first.file_id, COUNTS, {})
    back = ledger.file(second.file_id)
    assert (back.status, back.attempt, back.deaths) == ("uploaded", 1, 0)
    assert ledger.events(second.file_id)[-1].data == {"cause": "released", "died": False}
    assert _claim(ledger).files[0].attempt == 2


def test_an_expired_lease_is_taken_over_and_the_late_writer_refused(ledger: Ledger, upload: Upload) -> None:
    file = upload()
    late = _claim(ledger, "late")
    _expire(ledger)
    late.check()  # nobody came meanwhile: it is ours still
    _expire(ledger)
    claim = _claim(ledger, "next")
    assert [(found.file_id, found.attempt) for found in claim.files] == [(file.file_id, 2)]
    for write in (
        late.check,
        lambda: late.ready(file.file_id, COUNTS, {}),
        lambda: late.fail(file.file_id, "no"),
        lambda: late.event(file.file_id, "gold"),
        lambda: late.hand_back([file.file_id]),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert late.lost
    late.release()
    assert ledger.file(file.file_id).status == "processing"
    claim.ready(file.file_id, COUNTS, {})
    lost = ledger.events(file.file_id)[2]
    assert (lost.from_status, lost.to_status, lost.attempt, lost.actor) == ("processing", "uploaded", 1, "worker")


def test_the_late_writer_is_refused_also_where_only_the_lease_was_taken(ledger: Ledger, upload: Upload) -> None:
    file = upload()
    late = _claim(ledger, "late")
    _expire(ledger)
    lease = ledger.lease_dataset(ORDERS, "maintenance")
    assert lease is not None
    with pytest.raises(LeaseLost, match="maintenance holds it"):
        late.check()
    with pytest.raises(LeaseLost, match="nothing more may be written"):
        ledger.resume(late.token)
    assert ledger.file(file.file_id).status == "uploaded"


def test_sweeping_puts_back_what_expired_leases_hold(ledger: Ledger, upload: Upload) -> None:
    first, second = upload(), upload(dataset=CUSTOMERS)
    _claim(ledger, dataset=ORDERS)
    alive = _claim(ledger, dataset=CUSTOMERS)
    assert ledger.sweep() == []
    _expire(ledger)
    alive.heartbeat()
    assert ledger.sweep(who="scheduler 1") == [first.file_id]
    assert ledger.dataset(ORDERS).lease is None
    assert ledger.file(second.file_id).status == "processing"
    event = ledger.events(first.file_id)[-1]
    assert (event.actor, event.who, event.to_status) == ("scheduler", "scheduler 1", "uploaded")


def test_files_whose_jobs_die_together_are_tried_alone(ledger: Ledger) -> None:
    ids = [file.file_id for file in ledger.upload(ORDERS, [new_file() for _ in range(3)])]
    claim = _claim(ledger)
    claim.hand_back(reason="killed by signal 9", died=True)
    claim.release()
    late = ledger.upload(ORDERS, new_file())[0].file_id
    assert {file.deaths for file in ledger.files()} == {0}, "nobody knows which of them it was"
    for file_id in ids:
        with _claim(ledger) as claim:
            assert _ids(claim) == [file_id]
            claim.ready(file_id, COUNTS, {})
    assert _ids(_claim(ledger)) == [late]


@pytest.mark.parametrize("how", ["reported", "expired", "raised"])
def test_deaths_alone_count_and_end_in_failing(ledger: Ledger, upload: Upload, how: str) -> None:
    file = upload()
    for death in range(1, 4):
        claim = _claim(ledger, kind="ingest")
        assert claim.files[0].deaths == death - 1
        if how == "reported":
            claim.hand_back(reason="its job was killed by signal 9", died=True)
            claim.release()
        elif how == "raised":
            with pytest.raises(ZeroDivisionError), claim:
                raise ZeroDivisionError("cell text that must not be kept")
        else:
            _expire(ledger)
            assert ledger.sweep() == [file.file_id]
    failing = ledger.file(file.file_id)
    assert (failing.status, failing.attempt) == ("failing", 3)
    assert failing.reason is not None
    assert "died 3 times" in failing.reason
    assert "cell text" not in failing.reason
    claim = _claim(ledger)
    assert claim.kind == "removal"
    claim.removed(file.file_id)
    claim.release()
    failed = ledger.file(file.file_id)
    assert (failed.status, failed.reason) == ("failed", failing.reason), "why it failed outlives the clean-up"
    assert ledger.retry(file.file_id)[0].deaths == 0


def test_being_handed_back_is_no_death(ledger: Ledger, upload: Upload) -> None:
    file = upload()
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt), _claim(ledger):
            raise KeyboardInterrupt
    found = ledger.file(file.file_id)
    assert (found.status, found.attempt, found.deaths) == ("uploaded", 5, 0)


def test_our_own_errors_are_kept_as_the_cause(ledger: Ledger, upload: Upload) -> None:
    file = upload()
    with pytest.raises(LakeError), _claim(ledger):
        raise LakeError("The disk is full.")
    assert ledger.events(file.file_id)[-1].data == {"cause": "The disk is full.", "died": True}


def test_a_removal_is_retried_with_growing_delay_and_never_given_up(ledger: Ledger, upload: Upload) -> None:
    file, other = upload(), upload()
    ledger.delete(file.file_id)
    pauses = []
    for _ in range(5):
        claim = _claim(ledger)
        assert _ids(claim) == [file.file_id]
        claim.retry_later(file.file_id, "The catalog does not answer.")
        claim.release()
        waiting = ledger.file(file.file_id)
        assert waiting.not_before is not None
        pauses.append(round((waiting.not_before - waiting.updated_at).total_seconds()))
        assert (waiting.status, waiting.reason) == ("deleting", "The catalog does not answer.")
        with _claim(ledger) as claim:
            assert _ids(claim) == [other.file_id], "uploads need not wait for it"
        _due(ledger)
    assert pauses == [10, 20, 40, 80, 160]
    assert removal_delay(100) == 3600
    claim = _claim(ledger)
    _expire(ledger)
    assert ledger.sweep() == [file.file_id]
    found = ledger.file(file.file_id)
    assert (found.status, found.deaths) == ("deleting", 6)
    assert found.not_before is not None


def test_a_refused_removal_goes_back_with_its_reason(ledger: Ledger, upload: Upload) -> None:
    file = upload()
    with _claim(ledger) as claim:
        claim.ready(file.file_id, COUNTS, {"a": 1})
    ledger.archive(file.file_id)
    with _claim(ledger) as claim:
        claim.refuse(file.file_id, "The snapshot 7 has the tag 'audit'.")
    found = ledger.file(file.file_id)
    assert (found.status, found.counts, found.summary) == ("ready", COUNTS, {"a": 1})
    assert found.reason == "The snapshot 7 has the tag 'audit'."
    assert ledger.archive(file.file_id)[0].reason is None


def test_cleaning_up_cannot_be_refused_nor_an_upload_put_off(ledger: Ledger, upload: Upload) -> None:
    file = upload()
    with _claim(ledger) as claim:
        with pytest.raises(TransitionRefused, match="only a removal"):
            claim.retry_later(file.file_id, "later")
        with pytest.raises(TransitionRefused, match="was not claimed for removal"):
            claim.removed(file.file_id)
        claim.failing(file.file_id, "half of it is there")
    with _claim(ledger) as claim:
        with pytest.raises(TransitionRefused, match="came from no state"):
            claim.refuse(file.file_id, "tagged")
        claim.retry_later(file.file_id, "The catalog does not answer.")
    assert ledger.file(file.file_id).reason == "half of it is there"


def test_a_plain_lease_keeps_claims_away(ledger: Ledger, upload: Upload) -> None:
    file = upload()
    lease = ledger.lease_dataset(ORDERS, "rebuild", purpose="rebuild")
    assert lease is not None
    assert ledger.claim("w") is None
    assert ledger.lease_dataset(ORDERS, "other", wait=0.2) is None
    lease.check()
    lease.release()
    lease.release()
    with pytest.raises(LeaseLost, match="nobody holds it"):
        lease.check()
    with _claim(ledger, file_ids=[file.file_id]):
        assert ledger.lease_dataset(ORDERS, "other") is None
    with pytest.raises(NotFound):
        ledger.lease_dataset(CUSTOMERS, "other")


def test_a_claim_goes_on_in_another_process(ledger: Ledger, ledger_dsn: str, upload: Upload) -> None:
    first, second = upload(), upload()
    claim = _claim(ledger, "w", lease_seconds=10)
    claim.ready(first.file_id, COUNTS, {})
    with Ledger(ledger_dsn) as elsewhere:
        resumed = elsewhere.resume(claim.token)
        assert (_ids(resumed), resumed.worker) == ([second.file_id], "w")
        resumed.ready(second.file_id, COUNTS, {})
        resumed.release()
        with pytest.raises(LeaseLost):
            elsewhere.resume(claim.token)


def test_heartbeats_in_the_background(ledger: Ledger, upload: Upload) -> None:
    file = upload()
    claim = _claim(ledger, lease_seconds=0.6)
    with claim.keep_alive(every=0.1):
        ledger.delete(file.file_id)
        time.sleep(1.0)
        assert ledger.claim("other") is None
        assert claim.cancelled == {file.file_id}
        assert not claim.lost
    time.sleep(0.7)
    other = _claim(ledger, "other")
    with claim.keep_alive(every=0.05) as kept:
        time.sleep(0.4)
        assert kept.lost
    with pytest.raises(LeaseLost):
        claim.check()
    other.check()


def test_the_answer_to_a_commit_may_be_lost(ledger: Ledger, upload: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks right after each commit, so every call is tried a second time."""
    from sqlalchemy.exc import OperationalError

    ledger._database.backoff = 0.001
    run = ledger._database.patiently

    def lose_the_first_answer(attempt: Callable[[bool], object]) -> object:
        lost: list[bool] = []

        def losing(again: bool) -> object:
            result = attempt(again)
            if not lost:
                lost.append(True)
                raise OperationalError("", {}, Exception(), connection_invalidated=True)
            return result

        return run(losing)

    first, second, third = upload(), upload(), upload()
    monkeypatch.setattr(ledger._database, "patiently", lose_the_first_answer)
    claim = _claim(ledger)
    assert _ids(claim) == [first.file_id, second.file_id, third.file_id]
    assert {file.attempt for file in claim.files} == {1}
    claim.ready(first.file_id, COUNTS, {})
    claim.fail(second.file_id, "no")
    claim.release()
    ledger.archive(first.file_id)
    claim = _claim(ledger)
    claim.removed(first.file_id)
    claim.release()
    ledger.restore(first.file_id)
    ledger.retry(second.file_id)
    new = new_file()
    ledger.upload(ORDERS, new)
    lease = ledger.lease_dataset(ORDERS, "w")
    assert lease is not None
    lease.release()
    assert [file.status for file in ledger.files()] == ["uploaded"] * 4
    steps = [event.to_status for event in ledger.events(first.file_id)]
    assert steps == ["uploaded", "processing", "ready", "archiving", "archiving", "archived", "uploaded"]


def test_stages_of_several_files_are_noted_in_their_order(ledger: Ledger, upload: Callable[..., File]) -> None:
    first, second = upload(), upload()
    claim = ledger.claim("w1")
    assert claim is not None
    claim.events(
        [
            (first.file_id, "read", {"records": 1}),
            (second.file_id, "read", {"records": 2}),
            (first.file_id, "silver", {"rows": 1}),
        ]
    )
    claim.events([])
    noted = [(event.file_id, event.stage, event.data) for event in ledger.events() if event.stage is not None]
    assert noted == [
        (first.file_id, "read", {"records": 1}),
        (second.file_id, "read", {"records": 2}),
        (first.file_id, "silver", {"rows": 1}),
    ]
    assert [file.stage for file in ledger.by_ids([second.file_id, first.file_id])] == ["read", "silver"]
    claim.release()
    with pytest.raises(LeaseLost):
        claim.events([(first.file_id, "gold", {})])
