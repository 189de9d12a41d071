from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import DatasetNameCollision, NotFound, TransitionRefused
from airflow_lake_provider.ledger import File, Ledger
from tests.ledger.conftest import COUNTS, ORDERS, new_file

Upload = Callable[..., File]


def _ready(ledger: Ledger, file: File) -> File:
    claim = ledger.claim("w", file_ids=[file.file_id])
    assert claim is not None
    claim.ready(file.file_id, COUNTS, {"a": {"count": 1}})
    claim.release()
    return ledger.file(file.file_id)


def _removed(ledger: Ledger, file: File) -> File:
    claim = ledger.claim("w", file_ids=[file.file_id])
    assert claim is not None
    assert claim.kind == "removal"
    claim.removed(file.file_id, pending=["purge"])
    claim.release()
    return ledger.file(file.file_id)


def test_an_upload_is_kept_as_given(ledger: Ledger) -> None:
    new = new_file(overrides={"delimiter": ";"}, name="Überblick 2024.csv", size=2**40)
    (file,) = ledger.upload(ORDERS, new, who="ana")
    assert (file.status, file.name, file.size, file.overrides) == ("uploaded", new.name, 2**40, {"delimiter": ";"})
    assert (file.raw_uri, file.sha256, file.dataset, file.attempt) == (new.raw_uri, new.sha256, ORDERS, 0)
    assert file == ledger.file(file.file_id)
    (event,) = ledger.events(file.file_id)
    assert (event.actor, event.who, event.from_status, event.to_status) == ("user", "ana", None, "uploaded")


def test_uploads_keep_their_order(ledger: Ledger) -> None:
    batch = [new_file() for _ in range(40)]
    ledger.upload(ORDERS, batch[:25])
    ledger.upload(ORDERS, batch[25:])
    assert [file.file_id for file in ledger.files(ORDERS)] == [new.file_id for new in batch]


def test_registering_twice_changes_nothing(ledger: Ledger) -> None:
    new = new_file()
    assert ledger.upload(ORDERS, new) == ledger.upload(ORDERS, new)
    assert len(ledger.events()) == 1
    other = new_file("other bytes", file_id=new.file_id)
    with pytest.raises(TransitionRefused, match="belongs to another upload"):
        ledger.upload(ORDERS, other)


def test_what_postgres_cannot_store_is_replaced(ledger: Ledger) -> None:
    (file,) = ledger.upload(ORDERS, new_file(name="a\0b\udce4.csv", overrides={"k\0": "v\0\udce4\\u0000 😀"}))
    assert file.name == "a\ufffdb\ufffd.csv"
    assert file.overrides == {"k\ufffd": "v\ufffd\ufffd\\u0000 😀"}


def test_two_datasets_cannot_share_a_table_name(ledger: Ledger) -> None:
    ledger.ensure_dataset(DatasetName("acme", "my-shop", "orders"))
    with pytest.raises(DatasetNameCollision, match=r"acme__my_shop__orders.*acme/my-shop/orders"):
        ledger.upload(DatasetName("acme", "my_shop", "orders"), new_file())
    assert [str(dataset.name) for dataset in ledger.datasets()] == ["acme/my-shop/orders"]
    with pytest.raises(NotFound, match="acme/my_shop/orders"):
        ledger.dataset(DatasetName("acme", "my_shop", "orders"))


def test_archive_and_restore(ledger: Ledger, upload: Upload) -> None:
    file = _ready(ledger, upload())
    assert (file.status, file.counts, file.summary) == ("ready", COUNTS, {"a": {"count": 1}})
    (archiving,) = ledger.archive(file.file_id, who="bob")
    assert (archiving.status, archiving.former_status) == ("archiving", "ready")
    assert ledger.archive(file.file_id)[0] == archiving, "asking twice changes nothing"
    archived = _removed(ledger, file)
    assert (archived.status, archived.counts, archived.summary, archived.former_status) == ("archived",) + (None,) * 3
    assert archived.pending == ("purge",)
    assert ledger.settle_pending(file.file_id, "purge").pending == ()
    (restored,) = ledger.restore(file.file_id)
    assert restored.status == "uploaded"
    again = _ready(ledger, restored)
    assert again.status == "ready"
    assert again.attempt == 3, "the number of the attempt never falls back"
    steps = [event.to_status for event in ledger.events(file.file_id)]
    assert steps[:4] == ["uploaded", "processing", "ready", "archiving"]


def test_delete_from_every_resting_state(ledger: Ledger, upload: Upload) -> None:
    ready = _ready(ledger, upload("x"))
    duplicate = upload("x")
    failed, quarantined, archived, fresh = upload(), upload(), upload(), upload()
    claim = ledger.claim("w", file_ids=[failed.file_id, quarantined.file_id])
    assert claim is not None
    claim.fail(failed.file_id, "Line 3: the quote is not closed.")
    claim.quarantine(quarantined.file_id, "It is a ZIP archive.")
    claim.release()
    ledger.archive(archived.file_id)
    _removed(ledger, archived)
    every = [ready, duplicate, failed, quarantined, archived, fresh]
    assert {file.status for file in ledger.delete([file.file_id for file in every])} == {"deleting"}
    for file in every:
        assert _removed(ledger, file).status == "deleted"
        with pytest.raises(TransitionRefused, match="nothing can be done from there"):
            ledger.restore(file.file_id)


def test_all_or_none_are_removed(ledger: Ledger, upload: Upload) -> None:
    archived, fresh = upload(), upload()
    ledger.archive(archived.file_id)
    _removed(ledger, archived)
    ledger.delete(archived.file_id)
    with pytest.raises(TransitionRefused, match="deleting"):
        ledger.archive([fresh.file_id, archived.file_id])
    assert ledger.file(fresh.file_id).status == "uploaded"


def test_removal_of_a_file_that_is_being_read_follows_once_the_worker_lets_go(ledger: Ledger, upload: Upload) -> None:
    first, second, third, fourth = (upload() for _ in range(4))
    claim = ledger.claim("w")
    assert claim is not None
    ledger.delete([first.file_id, second.file_id, fourth.file_id], who="bob")
    ledger.archive(third.file_id)
    assert ledger.file(first.file_id).status == "processing"
    assert claim.cancelled == set()
    claim.heartbeat()
    assert claim.cancelled == {first.file_id, second.file_id, third.file_id, fourth.file_id}
    claim.ready(first.file_id, COUNTS, {})
    claim.fail(second.file_id, "no")
    claim.hand_back([third.file_id])
    claim.failing(fourth.file_id, "half of it is in bronze")
    claim.release()
    found = {file.file_id: file for file in ledger.files(ORDERS)}
    assert [(found[file.file_id].status, found[file.file_id].former_status) for file in (first, second, third)] == [
        ("deleting", "ready"),
        ("deleting", "failed"),
        ("archiving", "uploaded"),
    ]
    last = ledger.events(first.file_id)[-1]
    assert (last.actor, last.who, last.from_status, last.to_status) == ("user", "bob", "ready", "deleting")
    assert found[fourth.file_id].status == "failing"
    assert _removed(ledger, fourth).status == "deleting", "cleaned, failed, and then deleted as was asked for"
    assert _removed(ledger, fourth).status == "deleted"


def test_deleting_what_is_being_archived_follows(ledger: Ledger, upload: Upload) -> None:
    file = _ready(ledger, upload())
    ledger.archive(file.file_id)
    (wished,) = ledger.delete(file.file_id)
    assert (wished.status, wished.removal_requested) == ("archiving", "deleting")
    assert _removed(ledger, file).status == "deleting"
    assert _removed(ledger, file).status == "deleted"


def test_retry_reread_and_overrides(ledger: Ledger, upload: Upload) -> None:
    file = upload(overrides={"delimiter": ","})
    claim = ledger.claim("w")
    assert claim is not None
    claim.fail(file.file_id, "Line 1: no")
    claim.release()
    with pytest.raises(TransitionRefused, match="cannot be re-read: it is failed"):
        ledger.reread(file.file_id)
    (again,) = ledger.retry(file.file_id, overrides={"delimiter": "|"}, who="ana")
    assert (again.status, again.overrides, again.reason) == ("uploaded", {"delimiter": "|"}, None)
    with pytest.raises(TransitionRefused, match="it is uploaded"):
        ledger.retry(file.file_id)
    _ready(ledger, again)
    (reread,) = ledger.reread(file.file_id)
    assert (reread.status, reread.overrides) == ("uploaded", {"delimiter": "|"})
    assert ledger.present_files(ORDERS) == []


def test_settings(ledger: Ledger, upload: Upload) -> None:
    file = _ready(ledger, upload())
    assert file.settings_version == 1
    changed = ledger.change_settings(ORDERS, {"delimiter": ";", "types": {"a": "string"}}, who="ana")
    assert (changed.settings, changed.settings_version) == ({"delimiter": ";", "types": {"a": "string"}}, 2)
    assert ledger.change_settings(ORDERS, {"delimiter": ";"}).settings_version == 2, "nothing changed"
    assert ledger.change_settings(ORDERS, {"delimiter": None}).settings == {"types": {"a": "string"}}
    assert ledger.dataset(ORDERS).settings_version == 3
    events = [event for event in ledger.events(dataset=ORDERS) if event.file_id is None]
    assert [event.data for event in events] == [
        {"settings": {"delimiter": ";", "types": {"a": "string"}}},
        {"settings": {"delimiter": None}},
    ]
    ledger.reread(file.file_id)
    assert _ready(ledger, file).settings_version == 3


def test_reading_files_in_pages(ledger: Ledger, upload: Upload) -> None:
    other = DatasetName("acme", "shop", "customers")
    uploaded = [upload() for _ in range(5)]
    upload(dataset=other)
    page = ledger.files(ORDERS, limit=2)
    assert page == uploaded[:2]
    assert ledger.files(ORDERS, after=page[-1].seq, limit=2) == uploaded[2:4]
    assert ledger.files(ORDERS, newest_first=True, after=uploaded[2].seq) == uploaded[1::-1]
    assert len(ledger.files()) == 6
    assert ledger.files(ORDERS, statuses=["ready"]) == []
    assert ledger.status_counts()["uploaded"] == 6
    assert ledger.status_counts(other)["uploaded"] == 1
    first = ledger.events(limit=1)[0]
    assert [event.file_id for event in ledger.events(after=first.id)] == [file.file_id for file in ledger.files()][1:]
