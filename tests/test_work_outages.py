"""What is full or away while ``lake work`` has a job running: the same as within one process, seen from two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from airflow_lake_provider.dataset import LAYERS, DatasetName, Layer
from airflow_lake_provider.lake import Lake
from tests.command import Command
from tests.leftovers import left_elsewhere, left_in_raw, left_in_warehouse, wrong_events
from tests.outages import LARGE_ROWS, Disk, Server, large_csv, one_sentence, small_csv
from tests.workers import WorkProcess, awaited, processes_of, work

pytestmark = pytest.mark.slow

NAME = DatasetName("v", "p", "f")
SMALL_ROWS = 3


def upload(*paths: Path) -> list[str]:
    with Lake() as opened:
        return [item.file.file_id for item in opened.upload(paths, NAME) if item.file is not None]


def data_files(warehouse: Path) -> list[Path]:
    """The data files that are there, begun or whole."""
    return list(warehouse.rglob("*.parquet"))


def check(dsn: str, *, statuses: list[str], rows: int) -> list[str | None]:
    """All files have these states, each layer has so many rows, each once, and nothing is left of the work.

    Returns the reasons.
    """
    with Lake() as opened, psycopg.connect(dsn, autocommit=True) as connection:
        files = opened.ledger.files()
        assert sorted(file.status for file in files) == sorted(statuses)
        for layer in LAYERS:
            found = pa.Table.from_batches(opened.rows(NAME, layer, system=True))
            key = ["_row_hash"] if layer == "gold" else ["_file_id", "_row_number"]
            assert (layer, found.num_rows) == (layer, rows)
            assert (layer, found.group_by(key).aggregate([]).num_rows) == (layer, rows)
        assert processes_of(opened.settings.home) == []
        assert [
            *wrong_events(opened, files),
            *left_in_warehouse(opened, [NAME]),
            *left_in_raw(opened, files),
            *left_elsewhere(opened, connection),
        ] == []
        return [file.reason for file in files if file.status == "failed"]


@pytest.mark.parametrize(("layer", "how"), [("bronze", "stop"), ("silver", "kill"), ("gold", "kill")])
def test_the_database_restarts_while_a_job_writes(
    lake: Command, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: str, how: str
) -> None:
    monkeypatch.setenv("LAKE_RETRY_SECONDS", "30")
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "2")
    with Lake() as opened:
        warehouse = Path(opened.settings.warehouse)
    upload(small_csv(tmp_path))
    assert (first := work(tmp_path / "first.log")).code == 0, first.said
    known = len(data_files(warehouse / layer))
    assert known > 0
    upload(large_csv(tmp_path))

    process = WorkProcess(tmp_path / "work.log")
    awaited(lambda: len(data_files(warehouse / layer)) > known)
    getattr(server, how)()
    server.start_soon()
    assert process.wait() == 0, process.said
    server.settle()
    assert check(server.dsn, statuses=["ready", "ready"], rows=SMALL_ROWS + LARGE_ROWS) == []


@pytest.mark.parametrize("layer", LAYERS)
def test_the_disk_gets_full_while_a_job_writes(
    lake: Command,
    tmp_path: Path,
    ledger_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    disk: Callable[[str], Disk],
    layer: Layer,
) -> None:
    full = disk("64m")
    warehouse = full.folder / "warehouse"
    monkeypatch.setenv("LAKE_WAREHOUSE", str(warehouse))
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "2")
    upload(large_csv(tmp_path, "first.csv"))
    assert (first := work(tmp_path / "first.log")).code == 0, first.said
    sizes = {each: sum(path.stat().st_size for path in data_files(warehouse / each)) for each in LAYERS}
    (large,) = upload(large_csv(tmp_path))

    # Room for the layers before, and for half of this one.
    before = LAYERS[: LAYERS.index(layer)]
    full.fill(leave=sum(sizes[each] for each in before) + sizes[layer] // 2)
    done = work(tmp_path / "work.log")
    assert done.code == 1, done.said
    for each in before:
        assert sum(path.stat().st_size for path in data_files(warehouse / each)) > sizes[each] * 3 // 2
    full.make_room()
    # Where rows were in a table and not even the commit that takes them out found room, that is done now.
    last = work(tmp_path / "last.log")
    assert last.code in (0, 1), last.said
    (reason,) = check(ledger_dsn, statuses=["ready", "failed"], rows=LARGE_ROWS)
    assert reason is not None
    assert one_sentence(reason)
    assert "no space left" in reason.lower()
    assert str(full.folder) in reason

    assert [line["status"] for line in lake("reprocess", large, "--json").lines] == ["ready"]
    check(ledger_dsn, statuses=["ready", "ready"], rows=2 * LARGE_ROWS)
