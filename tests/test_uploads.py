"""Nothing stays in raw storage that the ledger does not know, however an upload ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import LedgerUnavailable, StorageUnavailable, TransitionRefused, UploadAbandoned
from airflow_lake_provider.jobs.runners import HereRunner
from airflow_lake_provider.jobs.worker import Worker
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.ledger import Ledger
from airflow_lake_provider.raw import RawStore
from airflow_lake_provider.settings import Secret, Settings

NAME = DatasetName("v", "p", "f")


@pytest.fixture
def here(ledger_dsn: str, tmp_path: Path) -> Iterator[Lake]:
    settings = Settings(home=tmp_path / "home", ledger_dsn=Secret(ledger_dsn), retry_seconds=1)
    with Lake(settings) as lake:
        yield lake


def files(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"{number}.csv" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text(f"id\n{number}\n")
    return paths


def stored(lake: Lake) -> list[str]:
    return sorted(path.name for path in Path(lake.settings.raw).rglob("*") if path.is_file())


def announced(lake: Lake) -> int:
    with psycopg.connect(lake.dsn) as connection:
        row = connection.execute("SELECT count(*) FROM lake.uploads").fetchone()
        assert row is not None
        return int(row[0])


def let_the_time_pass(lake: Lake) -> None:
    with psycopg.connect(lake.dsn) as connection:
        connection.execute("UPDATE lake.uploads SET expires = clock_timestamp() - interval '1 s'")


class Died(BaseException):
    """The end of the process, at which nothing is tidied up."""


@pytest.fixture
def dies_before_it_registers(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    def die(*_: object, **__: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "upload", die)
        yield patch


def test_what_an_upload_that_died_has_stored_is_removed_by_the_next(
    here: Lake, tmp_path: Path, dies_before_it_registers: pytest.MonkeyPatch
) -> None:
    paths = files(tmp_path, 3)
    with pytest.raises(Died):
        here.upload(paths, NAME)
    half = next(Path(here.settings.raw).rglob("1.csv")).parent
    (half / "1.csv").rename(half / ".upload-0123")
    dies_before_it_registers.undo()
    here.upload(paths[:1], NAME)
    assert stored(here) == [".upload-0123", "0.csv", "0.csv", "2.csv"]  # it may still be alive
    let_the_time_pass(here)
    here.upload(paths[1:2], NAME)
    assert stored(here) == ["0.csv", "1.csv"]
    assert announced(here) == 0
    assert [path for path in Path(here.settings.raw).rglob("*") if path.is_dir() and not any(path.iterdir())] == []


def test_an_idle_worker_removes_it_as_well(
    here: Lake, tmp_path: Path, dies_before_it_registers: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Died):
        here.upload(files(tmp_path, 2), NAME)
    let_the_time_pass(here)
    Worker(here, HereRunner(here)).run("idle")
    assert (stored(here), announced(here)) == ([], 0)


def test_what_was_given_up_is_not_registered_any_more(
    here: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = Ledger.upload

    def late(ledger: Ledger, *args: Any, **options: Any) -> object:
        let_the_time_pass(here)
        assert len(ledger.abandon()) == 2
        return upload(ledger, *args, **options)

    monkeypatch.setattr(Ledger, "upload", late)
    with pytest.raises(UploadAbandoned, match=r"'0\.csv' took too long.*upload it again"):
        here.upload(files(tmp_path, 2), NAME)
    assert here.ledger.files(NAME) == []
    assert (stored(here), announced(here)) == ([], 0)


def test_an_upload_that_took_long_is_registered_where_nobody_gave_it_up(
    here: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = Ledger.upload

    def late(ledger: Ledger, *args: Any, **options: Any) -> object:
        let_the_time_pass(here)
        return upload(ledger, *args, **options)

    monkeypatch.setattr(Ledger, "upload", late)
    assert [one.file is not None for one in here.upload(files(tmp_path, 2), NAME)] == [True, True]
    assert here.ledger.abandon() == {}
    assert stored(here) == ["0.csv", "1.csv"]


def test_nothing_stays_of_an_upload_that_the_ledger_refuses(
    here: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TransitionRefused("no")

    monkeypatch.setattr(Ledger, "upload", refuse)
    with pytest.raises(TransitionRefused):
        here.upload(files(tmp_path, 2), NAME)
    assert (stored(here), announced(here)) == ([], 0)


def test_bytes_stay_where_it_is_not_known_whether_they_were_registered(
    here: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = Ledger.upload

    def unanswered(ledger: Ledger, *args: Any, **options: Any) -> None:
        upload(ledger, *args, **options)
        raise LedgerUnavailable("away")

    monkeypatch.setattr(Ledger, "upload", unanswered)
    with pytest.raises(LedgerUnavailable):
        here.upload(files(tmp_path, 2), NAME)
    let_the_time_pass(here)
    assert here.ledger.abandon() == {}
    assert stored(here) == ["0.csv", "1.csv"]


def test_once_storage_is_away_the_rest_is_refused_and_what_may_be_there_is_removed_in_time(
    here: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = RawStore.put

    def sometimes(store: RawStore, path: Path, *args: Any) -> object:
        done = put(store, path, *args)
        if path.name == "1.csv":
            raise StorageUnavailable("away")
        return done

    monkeypatch.setattr(RawStore, "put", sometimes)
    uploads = here.upload([*files(tmp_path, 60), tmp_path / "absent.csv"], NAME)
    assert [one.file is not None for one in uploads] == [True] + [False] * 60
    assert {one.reason for one in uploads[1:]} == {"away"}
    assert (stored(here), announced(here)) == (["0.csv", "1.csv"], 1)
    let_the_time_pass(here)
    here.upload([], NAME)
    assert (stored(here), announced(here)) == (["0.csv"], 0)


def test_what_cannot_be_removed_is_tried_again(
    here: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_before_it_registers: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Died):
        here.upload(files(tmp_path, 2), NAME)
    dies_before_it_registers.undo()
    let_the_time_pass(here)
    tried: list[str] = []

    def away(store: RawStore, uri: str) -> None:
        tried.append(uri)
        raise StorageUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(RawStore, "delete", away)
        here.upload([], NAME)
    assert len(tried) == 1  # each would be waited for as long as the first
    assert announced(here) == 2
    here.upload([], NAME)
    assert (stored(here), announced(here)) == ([], 0)


def test_names_that_cannot_be_are_refused_before_anything_is_announced(here: Lake, tmp_path: Path) -> None:
    bad = tmp_path / "a\tb.csv"
    bad.write_text("id\n1\n")
    (one,) = here.upload([bad], NAME)
    assert one.reason is not None
    assert "control character" in one.reason
    assert announced(here) == 0
