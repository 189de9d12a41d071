"""The same bytes count once in a dataset, whatever happens to the files that have them."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import LakeError, TransitionRefused
from airflow_lake_provider.ledger import Claim, Counts, File, Ledger, resting
from airflow_lake_provider.ledger.schema import files
from airflow_lake_provider.ledger.states import COUNTED
from tests.ledger.conftest import COUNTS, ORDERS, new_file

Upload = Callable[..., File]


def _claim(ledger: Ledger, *chosen: File) -> Claim:
    claim = ledger.claim("w", file_ids=[file.file_id for file in chosen] if chosen else None)
    assert claim is not None
    return claim


def _state(ledger: Ledger, *chosen: File) -> list[tuple[str, str | None, bool]]:
    found = [ledger.file(file.file_id) for file in chosen]
    return [(file.status, file.duplicate_of, file.waiting) for file in found]


def test_a_second_upload_waits_and_is_final_once_the_first_is_ready(ledger: Ledger, upload: Upload) -> None:
    first, second = upload("x"), upload("x")
    assert _state(ledger, first, second) == [("uploaded", None, False), ("duplicate", first.file_id, True)]
    assert not resting(second)
    with _claim(ledger) as claim:
        assert [file.file_id for file in claim.files] == [first.file_id]
        claim.ready(first.file_id, COUNTS, {})
    assert _state(ledger, second) == [("duplicate", first.file_id, False)]
    assert resting(ledger.file(second.file_id))
    assert ledger.events(second.file_id)[-1].data == {"final": True}
    third = upload("x")
    assert (third.status, third.duplicate_of, third.waiting) == ("duplicate", first.file_id, False)
    ledger.archive(first.file_id)
    assert _state(ledger, second, third) == [("duplicate", first.file_id, False)] * 2, "final stays final"


def test_the_same_bytes_in_another_dataset_are_another_matter(ledger: Ledger, upload: Upload) -> None:
    upload("x")
    assert upload("x", dataset=DatasetName("acme", "shop", "customers")).status == "uploaded"


@pytest.mark.parametrize("end", ["fail", "quarantine", "failing", "archive", "delete"])
def test_the_oldest_that_waits_takes_over_when_the_first_leaves(ledger: Ledger, upload: Upload, end: str) -> None:
    first, second, third = upload("x"), upload("x"), upload("x")
    if end in ("archive", "delete"):
        getattr(ledger, end)(first.file_id)
    else:
        with _claim(ledger) as claim:
            getattr(claim, end)(first.file_id, "Line 1: no")
    assert _state(ledger, second, third) == [("uploaded", None, False), ("duplicate", second.file_id, True)]
    event = ledger.events(second.file_id)[-1]
    assert (event.from_status, event.to_status) == ("duplicate", "uploaded")
    assert event.data == {"took_over_from": first.file_id}


def test_handing_back_keeps_the_place(ledger: Ledger, upload: Upload) -> None:
    first, second = upload("x"), upload("x")
    with _claim(ledger) as claim:
        claim.hand_back([first.file_id])
    assert _state(ledger, first, second) == [("uploaded", None, False), ("duplicate", first.file_id, True)]


def test_duplicates_within_one_call(ledger: Ledger) -> None:
    batch = [new_file("x"), new_file("y"), new_file("x")]
    uploaded = ledger.upload(ORDERS, batch)
    assert [file.status for file in uploaded] == ["uploaded", "uploaded", "duplicate"]
    assert uploaded[2].duplicate_of == uploaded[0].file_id


def test_what_would_break_the_rule_is_refused_naming_the_other(ledger: Ledger, upload: Upload) -> None:
    first = upload("x")
    with _claim(ledger) as claim:
        claim.fail(first.file_id, "no")
    second = upload("x")
    with pytest.raises(TransitionRefused, match=f"cannot be retried.*as file {second.file_id}.*uploaded"):
        ledger.retry(first.file_id)
    ledger.archive(second.file_id)
    with _claim(ledger) as claim:
        claim.removed(second.file_id)
    ledger.retry(first.file_id)
    with pytest.raises(TransitionRefused, match=f"cannot be restored.*as file {first.file_id}"):
        ledger.restore(second.file_id)


def test_only_one_of_several_restored_at_once_may_have_the_bytes(ledger: Ledger, upload: Upload) -> None:
    first, second = upload("x"), upload("x")
    ledger.archive([second.file_id, first.file_id])
    with _claim(ledger) as claim:
        claim.removed([first.file_id, second.file_id])
    with pytest.raises(TransitionRefused, match="the same bytes"):
        ledger.restore([first.file_id, second.file_id])
    assert [state for state, *_ in _state(ledger, first, second)] == ["archived", "archived"]


def test_a_final_duplicate_can_be_read_once_the_other_is_gone(ledger: Ledger, upload: Upload) -> None:
    first, second = upload("x"), upload("x")
    with pytest.raises(TransitionRefused, match="it is duplicate"):
        ledger.retry(second.file_id)  # it waits, and will take over by itself
    with _claim(ledger) as claim:
        claim.ready(first.file_id, COUNTS, {})
    with pytest.raises(TransitionRefused, match=first.file_id):
        ledger.retry(second.file_id)
    ledger.delete(first.file_id)
    assert ledger.retry(second.file_id)[0].status == "uploaded"


def test_a_refused_removal_sends_a_newcomer_that_was_not_read_back(ledger: Ledger, upload: Upload) -> None:
    first = upload("x")
    with _claim(ledger) as claim:
        claim.ready(first.file_id, COUNTS, {})
    ledger.archive(first.file_id)
    second, third = upload("x"), upload("x")
    assert (second.status, third.status) == ("uploaded", "duplicate")
    with _claim(ledger) as claim:
        claim.refuse(first.file_id, "The snapshot 7 is tagged.")
    assert _state(ledger, first, second, third) == [
        ("ready", None, False),
        ("duplicate", first.file_id, False),
        ("duplicate", first.file_id, False),
    ]
    assert ledger.file(first.file_id).reason == "The snapshot 7 is tagged."


def test_a_refused_removal_of_an_unread_file_waits_behind_its_heir(ledger: Ledger, upload: Upload) -> None:
    first, second = upload("x"), upload("x")
    ledger.delete(first.file_id)
    with _claim(ledger) as claim:
        claim.refuse(first.file_id, "no")
    assert _state(ledger, first, second) == [("duplicate", second.file_id, True), ("uploaded", None, False)]


def test_a_refused_removal_cannot_go_back_where_another_was_read_since(ledger: Ledger, upload: Upload) -> None:
    first = upload("x")
    with _claim(ledger) as claim:
        claim.ready(first.file_id, COUNTS, {})
    ledger.archive(first.file_id)
    with _claim(ledger, first) as claim:
        claim.retry_later(first.file_id, "The catalog does not answer.")
    second = upload("x")
    with _claim(ledger) as claim:
        claim.ready(second.file_id, COUNTS, {})
    ledger._database.run(lambda connection, again: connection.execute(files.update().values(not_before=None)))
    with _claim(ledger, first) as claim:
        with pytest.raises(TransitionRefused, match=f"{second.file_id}.*put the removal off"):
            claim.refuse(first.file_id, "tagged")
        claim.retry_later(first.file_id, "tagged")
    assert _state(ledger, first, second) == [("archiving", None, False), ("ready", None, False)]


def test_the_index_holds_where_all_else_fails(ledger: Ledger, upload: Upload) -> None:
    first = upload("x")
    row = {
        "file_id": "another",
        "dataset_id": first.dataset_id,
        "name": "n",
        "raw_uri": "r",
        "size": 1,
        "sha256": first.sha256,
        "status": "uploaded",
    }
    with (
        ledger._database.engine().connect() as connection,
        pytest.raises(IntegrityError, match="files_same_bytes_key"),
    ):
        connection.execute(insert(files), [row])


def test_uploads_of_the_same_bytes_at_once_give_exactly_one(ledger: Ledger) -> None:
    ledger.open()
    barrier = threading.Barrier(6)
    statuses: list[str] = []

    def upload_rounds() -> None:
        for number in range(8):
            barrier.wait(timeout=30)
            statuses.append(ledger.upload(ORDERS, new_file(f"round {number}"))[0].status)

    threads = [threading.Thread(target=upload_rounds) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert statuses.count("uploaded") == 8
    assert statuses.count("duplicate") == 40


@pytest.mark.parametrize("seed", range(4))
def test_no_path_of_events_breaks_the_rule(ledger: Ledger, seed: int) -> None:
    """After each of many random steps: one file has the bytes, and a waiting duplicate has something to wait for."""
    chance = random.Random(seed)
    ids: list[str] = []

    def one_of(*statuses: str) -> str | None:
        found = [file.file_id for file in ledger.files() if not statuses or file.status in statuses]
        return chance.choice(found) if found else None

    def work_on(claim: Claim) -> None:
        ends = ["removed", "removed", "refuse"] if claim.kind == "removal" else ["ready", "fail", "failing", "back", ""]
        for file in claim.files:
            match chance.choice(ends):
                case "removed":
                    claim.removed(file.file_id)
                case "refuse":
                    claim.refuse(file.file_id, "tagged")
                case "ready":
                    claim.ready(file.file_id, Counts(1, 1, 1, 1), {})
                case "fail":
                    claim.fail(file.file_id, "no")
                case "failing":
                    claim.failing(file.file_id, "no")
                case "back":
                    claim.hand_back([file.file_id])

    def read_again(file_id: str) -> None:
        match ledger.file(file_id).status:
            case "archived":
                ledger.restore(file_id)
            case "ready":
                ledger.reread(file_id)
            case _:
                ledger.retry(file_id)

    for _ in range(60):
        action = chance.choice(["upload", "upload", "archive", "delete", "again", "work", "work", "work"])
        try:
            if action == "upload":
                ids.append(ledger.upload(ORDERS, new_file(chance.choice("xyz")))[0].file_id)
            elif action in ("archive", "delete") and (file_id := one_of()):
                getattr(ledger, action)(file_id)
            elif action == "again" and (file_id := one_of("failed", "archived", "ready", "duplicate")):
                read_again(file_id)
            elif action == "work" and (claim := ledger.claim("w", max_files=chance.choice([1, 2, 5]))):
                asked = one_of("processing")
                if asked and chance.random() < 0.3:
                    ledger.delete(asked)
                with claim:
                    work_on(claim)
        except TransitionRefused:
            pass
        except LakeError as error:  # pragma: no cover - says which step it was
            pytest.fail(f"{action}: {error}")
        holders: dict[str, list[File]] = defaultdict(list)
        found = {file.file_id: file for file in ledger.files()}
        for file in found.values():
            if file.status in COUNTED:
                holders[file.sha256].append(file)
        assert all(len(same) == 1 for same in holders.values())
        for file in found.values():
            assert not file.waiting or file.status == "duplicate"
            if file.waiting:
                assert file.duplicate_of is not None
                first = found[file.duplicate_of]
                assert first.status in ("uploaded", "processing"), "it waits for something that may still happen"
                assert holders[file.sha256] == [first]
    assert set(ids) == {file.file_id for file in ledger.files()}
