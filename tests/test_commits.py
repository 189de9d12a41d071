"""Catalogs that misbehave while tables are created and committed to: one copy of each row, and nothing lost or left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_lake_provider.dataset import LAYERS, DatasetName
from airflow_lake_provider.jobs import attempts
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.ledger import File, leases
from airflow_lake_provider.medallion.embedded.parquet import local_path
from airflow_lake_provider.medallion.embedded.tables import live_files, load
from tests.command import Command, Done
from tests.rest_catalog import Misbehaviour, Operation, RestCatalogServer

DATASET = "v/p/f"
NAME = DatasetName.parse(DATASET)
PLACE = ("--vendor", "v", "--project", "p", "--folder", "f")


def ingest(lake: Command, *paths: Path) -> Done:
    return lake("ingest", *map(str, paths), *PLACE, "--json")


def small_csv(folder: Path, name: str, rows: int = 3) -> Path:
    path = folder / name
    path.write_text("id,v\n" + "".join(f"{n},{name}\n" for n in range(rows)))
    return path


def one_sentence(text: str) -> bool:
    return text.endswith(".") and not text.endswith("..") and "\n" not in text and "Error:" not in text


def check(rows: int | None, dataset: DatasetName = NAME) -> None:
    """Each layer has so many rows, each once, of the files that the ledger says are ready. All that a snapshot names is
    there, and nothing else is.

    With None only the former is asked of the files: what a commit of unknown outcome has written stays until the next
    attempt. (Written without the code under test, which decides by its own what may be deleted.)
    """
    with Lake() as opened:
        ready = {file.file_id for file in opened.ledger.files(dataset) if file.status == "ready"}
        for layer in LAYERS:
            table = load(opened.catalog, dataset, layer)
            if table is None:
                assert not rows
                folder = Path(opened.settings.warehouse) / layer / dataset.table_name
                assert rows is None or [path for path in folder.rglob("*") if path.is_file()] == []
                continue
            named: set[str] = set()
            for snapshot in table.snapshots():
                named.add(snapshot.manifest_list)
                for manifest in snapshot.manifests(table.io):
                    named.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                    named.update(entry.data_file.file_path for entry in entries)
            place = local_path(table.location())
            there = {f"file://{path}" for path in (*place.rglob("*.parquet"), *place.rglob("*.avro"))}
            assert (layer, named - there) == (layer, set())
            if rows is None:
                continue
            assert (layer, there - named) == (layer, set())
            found = pa.Table.from_batches(opened.rows(dataset, layer, system=True)) if rows else None
            if found is None:
                assert sum(file.record_count for file in live_files(table)) == 0
                continue
            key = ["_row_hash"] if layer == "gold" else ["_file_id", "_row_number"]
            assert (layer, found.num_rows) == (layer, rows)
            assert (layer, found.group_by(key).aggregate([]).num_rows) == (layer, rows)
            assert (layer, set(found["_file_id"].to_pylist())) == (layer, ready)
        temp = opened.settings.temp_dir
    assert not temp.is_dir() or list(temp.iterdir()) == []


@pytest.fixture(autouse=True)
def _no_pauses(lake: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is so at once, and often enough for a fault at each of the three tables."""
    monkeypatch.setattr(attempts, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(attempts, "_LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(leases, "FIRST_DELAY", 0.1)
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "5")


# -- a REST catalog ----------------------------------------------------------------------------------------------------


@pytest.fixture
def rest(lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestCatalogServer]:
    """A REST catalog that the ``lake`` of this test uses."""
    with RestCatalogServer(tmp_path / "rest") as server:
        monkeypatch.setenv("LAKE_CATALOG_TYPE", "rest")
        monkeypatch.setenv("LAKE_CATALOG_URI", server.uri)
        monkeypatch.setenv("LAKE_WAREHOUSE", str(server.tables))
        monkeypatch.setenv("LAKE_RETRY_SECONDS", "10")
        yield server


ONCE = {
    "dropped before the commit": Misbehaviour("commit", carry_out=0, status=None),
    "dropped after the commit": Misbehaviour("commit", status=None),
    "dropped long before the commit": Misbehaviour("commit", late=True, status=None),
    "a conflict": Misbehaviour("commit", carry_out=0, status=409),
    "a conflict with its own repetition": Misbehaviour("commit", carry_out=2),
    "the token expired before the commit": Misbehaviour("commit", carry_out=0, status=419),
    "the token expired after the commit": Misbehaviour("commit", status=419),
    "500 before the commit": Misbehaviour("commit", carry_out=0, status=500),
    "500 after the commit": Misbehaviour("commit", status=500),
    "502 after the commit": Misbehaviour("commit", status=502),
    "503 before the commit": Misbehaviour("commit", carry_out=0, status=503),
    "504 after the commit": Misbehaviour("commit", status=504),
    "504 long before the commit": Misbehaviour("commit", late=True, status=504),
    "429 before the commit": Misbehaviour("commit", carry_out=0, status=429),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("how", ONCE)
def test_a_commit_to_each_table_goes_wrong(
    lake: Command, rest: RestCatalogServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, times: int
) -> None:
    """With two times both commits to a new table go wrong, the one that creates it and the one of its rows."""
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "8")
    for number, path in enumerate((small_csv(tmp_path, "new.csv"), small_csv(tmp_path, "more.csv")), start=1):
        for layer in LAYERS:
            rest.misbehave(replace(ONCE[how], namespace=layer, times=times if number == 1 else 1))
        done = ingest(lake, path)
        assert [line["status"] for line in done.lines] == ["ready"], done.output
        assert rest.behave() == 0
        check(3 * number)


CREATION: dict[str, dict[str, Any]] = {
    "dropped before": {"carry_out": 0, "status": None},
    "dropped after": {"status": None},
    "made by another meanwhile": {"carry_out": 2},
    "500 before": {"carry_out": 0, "status": 500},
    "500 after": {"status": 500},
    "503 before": {"carry_out": 0, "status": 503},
}


@pytest.mark.parametrize("operation", ["create namespace", "create"])
@pytest.mark.parametrize("how", CREATION)
def test_a_creation_in_each_namespace_goes_wrong_once(
    lake: Command, rest: RestCatalogServer, tmp_path: Path, how: str, operation: Operation
) -> None:
    for layer in LAYERS:
        rest.misbehave(Misbehaviour(operation, layer, **CREATION[how]))
    done = ingest(lake, small_csv(tmp_path, "new.csv"))
    assert rest.behave() == 0
    assert [line["status"] for line in done.lines] == ["ready"], done
    check(3)


@pytest.mark.parametrize("status", [None, 500, 503])
@pytest.mark.parametrize("operation", ["config", "namespace", "load"])
def test_a_question_that_is_not_answered_once(
    lake: Command, rest: RestCatalogServer, tmp_path: Path, operation: Operation, status: int | None
) -> None:
    rest.misbehave(Misbehaviour(operation, carry_out=0, status=status))
    done = ingest(lake, small_csv(tmp_path, "new.csv"))
    assert rest.behave() == 0
    assert [line["status"] for line in done.lines] == ["ready"], done
    check(3)


def test_nothing_repeats_a_commit_by_itself(lake: Command, rest: RestCatalogServer, tmp_path: Path) -> None:
    """Neither the HTTP client, told nothing of the commit, nor PyIceberg, which rebases what met a conflict."""
    for layer in LAYERS:
        rest.misbehave(Misbehaviour("commit", layer, status=None))
    assert ingest(lake, small_csv(tmp_path, "new.csv")).code == 0
    # The first one creates the table.
    assert [rest.count("commit", layer) for layer in LAYERS] == [2, 2, 2]
    rest.misbehave(Misbehaviour("commit", "gold", carry_out=0, status=409))
    assert ingest(lake, small_csv(tmp_path, "more.csv")).code == 0
    # The second attempt commits to each table anew, on a base of its own.
    assert [rest.count("commit", layer) for layer in LAYERS] == [4, 4, 4]
    check(6)


@pytest.mark.parametrize(("layer", "status"), [("bronze", 409), ("silver", 500), ("gold", 503), ("silver", None)])
def test_commits_that_go_wrong_for_long(
    lake: Command,
    rest: RestCatalogServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layer: str,
    status: int | None,
) -> None:
    monkeypatch.setenv("LAKE_RETRY_SECONDS", "1")
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "2")
    assert ingest(lake, small_csv(tmp_path, "new.csv")).code == 0
    rest.misbehave(Misbehaviour("commit", layer, carry_out=0, status=status, times=1000))
    done = ingest(lake, small_csv(tmp_path, "more.csv"))
    rest.behave()
    (line,) = done.lines
    assert done.code == 1
    assert line["status"] in ("uploaded", "failing", "failed")
    assert one_sentence(line["reason"]), line["reason"]
    assert "catalog" in line["reason"] or f"{layer}.v__p__f" in line["reason"]
    check(None)
    again = lake("reprocess", line["file_id"], "--json")
    assert [line["status"] for line in again.lines] == ["ready"], again
    check(6)


def at_request(
    rest: RestCatalogServer, operation: Operation, layer: str, moment: str, then: Callable[[], None]
) -> Misbehaviour:
    """Let something happen at a request, before it is carried out or after that; its connection is then dropped."""
    how = Misbehaviour(operation, layer, carry_out=int(moment == "after"), status=None, meanwhile=then)
    rest.misbehave(how)
    return how


@pytest.mark.parametrize(
    ("operation", "layer", "moment"),
    [
        ("load", "bronze", "before"),
        ("commit", "bronze", "after"),
        ("commit", "silver", "before"),
        ("load", "gold", "after"),
    ],
)
def test_a_short_outage_is_sat_out(
    lake: Command, rest: RestCatalogServer, tmp_path: Path, operation: Operation, layer: str, moment: str
) -> None:
    assert ingest(lake, small_csv(tmp_path, "new.csv")).code == 0
    back: list[threading.Timer] = []

    def outage() -> None:
        rest.go_away()
        back.append(threading.Timer(1.5, rest.come_back))
        back[0].start()

    at_request(rest, operation, layer, moment, outage)
    done = ingest(lake, small_csv(tmp_path, "more.csv"))
    back[0].join()
    assert [line["status"] for line in done.lines] == ["ready"], done
    check(6)


@pytest.mark.parametrize(
    ("layer", "moment"), [("bronze", "after"), ("silver", "before"), ("silver", "after"), ("gold", "after")]
)
def test_a_long_outage_is_gone_on_from_with_the_next_command(
    lake: Command,
    rest: RestCatalogServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layer: str,
    moment: str,
) -> None:
    monkeypatch.setenv("LAKE_RETRY_SECONDS", "0.2")
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "2")
    assert ingest(lake, small_csv(tmp_path, "new.csv")).code == 0
    at_request(rest, "commit", layer, moment, rest.go_away)
    done = ingest(lake, small_csv(tmp_path, "more.csv"))
    (line,) = done.lines
    assert done.code == 1
    assert line["status"] in ("uploaded", "failing")
    assert one_sentence(line["reason"]), line["reason"]
    assert "catalog" in line["reason"]
    rest.come_back()
    check(None)
    again = lake("reprocess", line["file_id"], "--json")
    assert [line["status"] for line in again.lines] == ["ready"], again
    check(6)


def test_no_catalog_at_all(
    lake: Command, rest: RestCatalogServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_RETRY_SECONDS", "0.2")
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "2")
    rest.go_away()
    done = ingest(lake, small_csv(tmp_path, "new.csv"))
    (line,) = done.lines
    assert done.code == 1
    assert one_sentence(line["reason"]), line["reason"]
    shown = lake("show", "gold", DATASET, "--json")
    assert shown.code == 1
    assert one_sentence(shown.error.strip()), shown.error
    rest.come_back()
    assert lake("reprocess", line["file_id"], "--json").lines[0]["status"] == "ready"
    check(3)


def test_an_answer_that_takes_long(lake: Command, rest: RestCatalogServer, tmp_path: Path) -> None:
    for layer in LAYERS:
        rest.misbehave(Misbehaviour("commit", layer, meanwhile=lambda: time.sleep(0.5)))
    assert ingest(lake, small_csv(tmp_path, "new.csv")).code == 0
    assert rest.count("commit") == 6
    check(3)


@pytest.mark.parametrize(
    ("operation", "layer", "carry_out"), [("commit", "silver", 0), ("commit", "gold", 1), ("load", "bronze", 0)]
)
def test_an_answer_that_never_comes(
    lake: Command,
    rest: RestCatalogServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: Operation,
    layer: str,
    carry_out: int,
) -> None:
    monkeypatch.setenv("LAKE_RETRY_SECONDS", "1")
    never = threading.Event()

    def wait() -> None:
        never.wait()

    rest.misbehave(Misbehaviour(operation, layer, carry_out=carry_out, status=None, meanwhile=wait))
    files: list[File] = []

    def work() -> None:
        with Lake() as opened:
            (upload,) = opened.upload([small_csv(tmp_path, "new.csv")], NAME)
            assert upload.file is not None
            files.extend(opened.process(NAME, [upload.file.file_id]))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout=20)
    hung = thread.is_alive()
    never.set()
    thread.join()
    assert not hung
    assert [file.status for file in files] == ["ready"], files
    check(3)
