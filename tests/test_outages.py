"""What is away or full, for a while: a sentence that says so, nothing half done, and going on once it is over."""

from __future__ import annotations

import gzip
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_lake_provider.catalog.postgres import PostgresCatalog
from airflow_lake_provider.dataset import LAYERS, DatasetName
from airflow_lake_provider.errors import NoSpaceLeft
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.ledger import Claim
from airflow_lake_provider.medallion.embedded.parquet import BackgroundWriter, local_path
from airflow_lake_provider.medallion.embedded.tables import TableChange, live_files, load
from tests.command import Command, Done
from tests.outages import LARGE_ROWS, Disk, Server, large_csv, one_sentence, small_csv

PLACE = ("--vendor", "v", "--project", "p", "--folder", "f")
DATASET = "v/p/f"
NAME = DatasetName.parse(DATASET)


def ingest(lake: Command, *words: object) -> Done:
    return lake("ingest", *map(str, words), *PLACE, "--json")


def check(**rows: int) -> None:
    """Each layer has so many rows, each once, and nothing lies about that no snapshot names."""
    with Lake() as opened:
        tables = {layer: load(opened.catalog, NAME, layer) for layer in LAYERS}
        for layer, table in tables.items():
            folder = DATASET.replace("/", "__")
            if table is None:
                assert rows.get(layer, 0) == 0
                assert list(Path(opened.settings.warehouse).rglob(f"{layer}/{folder}/**/*.parquet")) == []
                continue
            # Written without the code under test, which decides by it what may be deleted.
            named = set()
            for snapshot in table.snapshots():
                named.add(snapshot.manifest_list)
                for manifest in snapshot.manifests(table.io):
                    named.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                    named.update(entry.data_file.file_path for entry in entries)
            place = local_path(table.location())
            there = {f"file://{path}" for path in (*place.rglob("*.parquet"), *place.rglob("*.avro"))}
            assert there <= named
            assert {f.file_path for f in live_files(table)} <= there
            if rows:
                found = pa.Table.from_batches(opened.rows(NAME, layer, system=True))
                key = ["_row_hash"] if layer == "gold" else ["_file_id", "_row_number"]
                assert (layer, found.num_rows) == (layer, rows[layer])
                assert (layer, found.group_by(key).aggregate([]).num_rows) == (layer, rows[layer])
        temp = opened.settings.temp_dir
    assert not temp.is_dir() or list(temp.iterdir()) == []


def each(rows: int) -> dict[str, int]:
    """So many rows in every layer."""
    return dict.fromkeys(LAYERS, rows)


# -- full --------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _few_attempts(lake: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "2")


def at_moment(monkeypatch: pytest.MonkeyPatch, layer: str, moment: str, then: Callable[[], None]) -> None:
    """Let something happen whenever a table is opened for a change, or right before or after its commit."""
    if moment == "begin":
        begin = TableChange.__init__

        def begun(self: TableChange, catalog: Any, dataset: DatasetName, which: Any) -> None:
            begin(self, catalog, dataset, which)
            if which == layer:
                then()

        monkeypatch.setattr(TableChange, "__init__", begun)
        return
    commit = PostgresCatalog.commit_table

    def committed(self: PostgresCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        mine = table.name()[0] == layer
        if mine and moment == "before":
            then()
        response = commit(self, table, requirements, updates)
        if mine and moment == "after":
            then()
        return response

    monkeypatch.setattr(PostgresCatalog, "commit_table", committed)


@pytest.mark.parametrize(
    ("size", "layer", "moment"),
    [
        ("small", "bronze", "before"),
        ("small", "silver", "begin"),
        ("small", "gold", "before"),
        ("large", "bronze", "begin"),
        ("large", "silver", "before"),
        ("large", "gold", "begin"),
    ],
)
def test_the_warehouse_is_full(
    lake: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    disk: Callable[[str], Disk],
    size: str,
    layer: str,
    moment: str,
) -> None:
    full = disk("64m")
    monkeypatch.setenv("LAKE_WAREHOUSE", str(full.folder / "warehouse"))
    other = small_csv(tmp_path, "other.csv")
    assert ingest(lake, other).code == 0
    path, rows = (small_csv(tmp_path), 3) if size == "small" else (large_csv(tmp_path), LARGE_ROWS)
    with monkeypatch.context() as patch:
        at_moment(patch, layer, moment, full.fill)
        began = time.monotonic()
        done = ingest(lake, path)
        assert time.monotonic() - began < 20
    (line,) = done.lines
    assert done.code == 1
    assert "no space left" in line["reason"].lower()
    assert str(full.folder) in line["reason"]
    assert one_sentence(line["reason"])
    # Where rows are in bronze and not even the commit that takes them out finds room, that is done later.
    assert line["status"] in ("failed", "failing")
    check(**each(3) if line["status"] == "failed" else {})
    full.make_room()
    again = lake("reprocess", line["file_id"], "--json") if moment == "before" else ingest(lake, path)
    assert [each["status"] for each in again.lines] == ["ready"], again
    check(**each(3 + rows))


def test_a_file_that_is_too_large_for_the_disk_holds_up_no_other(
    lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Callable[[str], Disk]
) -> None:
    full = disk("2m")
    monkeypatch.setenv("LAKE_WAREHOUSE", str(full.folder / "warehouse"))
    done = ingest(lake, small_csv(tmp_path, "a.csv"), large_csv(tmp_path), small_csv(tmp_path, "b.csv"))
    assert done.code == 1
    assert [line["status"] for line in done.lines] == ["ready", "failed", "ready"]
    assert "no space left" in done.lines[1]["reason"].lower()
    check(**each(6))


def test_many_files_and_a_full_disk_end_in_good_time(
    lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Callable[[str], Disk]
) -> None:
    full = disk("2m")
    full.fill()
    monkeypatch.setenv("LAKE_WAREHOUSE", str(full.folder))
    paths = [small_csv(tmp_path, f"{n}.csv") for n in range(6)]
    began = time.monotonic()
    done = ingest(lake, *paths)
    assert time.monotonic() - began < 20
    assert {line["status"] for line in done.lines} == {"failed"}
    assert all("no space left" in line["reason"].lower() for line in done.lines)
    full.make_room()
    done = lake("reprocess", *(line["file_id"] for line in done.lines), "--json")
    assert {line["status"] for line in done.lines} == {"ready"}
    check(**each(18))


def test_a_ready_file_that_is_read_again_keeps_its_rows(
    lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Callable[[str], Disk]
) -> None:
    full = disk("16m")
    monkeypatch.setenv("LAKE_WAREHOUSE", str(full.folder / "warehouse"))
    path = tmp_path / "a.csv"
    path.write_text("id,v\n1,NA\n2,3\n")
    (line,) = ingest(lake, path).lines
    full.fill()
    done = lake("settings", DATASET, "null_tokens=NA", "--json")
    assert done.code == 1
    waiting = done.lines[1]
    assert waiting["status"] == "uploaded"
    assert "no space left" in waiting["reason"].lower()
    assert lake("show", "gold", DATASET, "--json").lines == [["1", "NA"], ["2", "3"]]
    full.make_room()
    (line,) = lake("reprocess", line["file_id"], "--json").lines
    assert line["status"] == "ready"
    assert lake("show", "gold", DATASET, "--json").lines == [["1", None], ["2", "3"]]
    check(**each(2))


def test_a_disk_that_is_full_when_the_footer_is_written_ends_the_writer(disk: Callable[[str], Disk]) -> None:
    full = disk("2m")
    full.fill(leave=96 << 10)
    names = [f"column {n}" for n in range(1500)]
    batch = pa.RecordBatch.from_arrays([pa.array([1])] * len(names), names)
    path = full.folder / "wide.parquet"
    raised: list[BaseException] = []

    def write() -> None:
        try:
            with BackgroundWriter(path, batch.schema) as writer:
                writer.write(batch)
                writer.close()
        except NoSpaceLeft as error:
            raised.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert len(raised) == 1
    assert not path.exists()


def test_files_that_are_read_again_one_at_a_time(
    lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are where an attempt at all of them failed: the rows of those that still wait are in the tables."""
    one, two = tmp_path / "a.csv", tmp_path / "b.csv"
    one.write_text("id,v\n1,5\n2,NA\n")
    two.write_text("id,w\n2,7\n3,NA\n")
    assert ingest(lake, one, two).code == 0
    before = lake("show", "gold", DATASET, "--json").lines
    monkeypatch.setenv("LAKE_BATCH_MAX_FILES", "1")
    assert lake("settings", DATASET, "null_tokens=NA", "--json").code == 0
    rows = [["1", "5", None], ["2", None, None], ["2", None, "7"], ["3", None, None]]
    assert lake("show", "gold", DATASET, "--json").lines == rows
    assert lake("settings", DATASET, "null_tokens=", "--json").code == 0
    assert lake("show", "gold", DATASET, "--json").lines == before
    check(**each(4))


def test_raw_storage_is_full(
    lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Callable[[str], Disk]
) -> None:
    full = disk("2m")
    monkeypatch.setenv("LAKE_RAW", str(full.folder / "raw"))
    done = ingest(lake, small_csv(tmp_path, "a.csv"), large_csv(tmp_path), small_csv(tmp_path, "b.csv"))
    assert done.code == 1
    assert [line["status"] for line in done.lines] == ["ready", "failed", "ready"]
    assert "no space left" in done.lines[1]["reason"].lower()
    assert one_sentence(done.lines[1]["reason"])
    assert len([path for path in full.folder.rglob("*") if path.is_file()]) == 2
    check(**each(6))


def test_the_temporary_folder_is_too_small_for_unpacking(
    lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Callable[[str], Disk]
) -> None:
    full = disk("2m")
    monkeypatch.setenv("LAKE_TEMP_DIR", str(full.folder / "tmp"))
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress(b"id,v\n" + b"".join(b"%d,%060d\n" % (n, n) for n in range(150_000)), 1))
    done = ingest(lake, packed, small_csv(tmp_path))
    assert [line["status"] for line in done.lines] == ["failed", "ready"]
    reason = done.lines[0]["reason"]
    assert "no space left" in reason
    assert one_sentence(reason)
    check(**each(3))
    monkeypatch.delenv("LAKE_TEMP_DIR")
    assert lake("reprocess", done.lines[0]["file_id"], "--json").lines[0]["status"] == "ready"
    check(**each(150_003))


def test_the_temporary_folder_is_too_small_for_sorting(
    lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Callable[[str], Disk]
) -> None:
    full = disk("1m")
    monkeypatch.setenv("LAKE_TEMP_DIR", str(full.folder / "tmp"))
    monkeypatch.setenv("LAKE_DUCKDB_MEMORY_LIMIT", "16MB")
    monkeypatch.setenv("LAKE_DUCKDB_THREADS", "1")
    path = tmp_path / "repeats.csv"
    path.write_bytes(b"id,v\n" + b"".join(b"%d,%060d\n" % (n // 2, n // 2) for n in range(150_000)))
    done = ingest(lake, path)
    (line,) = done.lines
    assert (done.code, line["status"]) == (1, "failed"), line
    assert str(full.folder / "tmp") in line["reason"] or "LAKE_DUCKDB_MEMORY_LIMIT" in line["reason"]
    assert one_sentence(line["reason"])
    check(**each(0))
    monkeypatch.delenv("LAKE_TEMP_DIR")
    monkeypatch.delenv("LAKE_DUCKDB_MEMORY_LIMIT")
    assert lake("reprocess", line["file_id"], "--json").lines[0]["status"] == "ready"
    check(bronze=150_000, silver=75_000, gold=75_000)


# -- away --------------------------------------------------------------------------------------------------------------


def once(action: Callable[[], None]) -> Callable[[], None]:
    """The action, the first time alone."""
    done: list[bool] = []

    def first() -> None:
        if not done:
            done.append(True)
            action()

    return first


@pytest.mark.parametrize(
    ("layer", "moment", "how"),
    [
        ("bronze", "begin", "stop"),
        ("bronze", "before", "stop"),
        ("silver", "after", "kill"),
        ("gold", "before", "kill"),
        ("ledger", "before", "kill"),
    ],
)
def test_a_short_outage_of_the_database_is_sat_out(
    lake: Command,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layer: str,
    moment: str,
    how: str,
) -> None:
    monkeypatch.setenv("LAKE_RETRY_SECONDS", "20")
    assert ingest(lake, small_csv(tmp_path, "other.csv")).code == 0

    def outage() -> None:
        getattr(server, how)()
        server.start_soon()

    with monkeypatch.context() as patch:
        if layer == "ledger":
            finish = Claim.finish
            away = once(outage)
            patch.setattr(Claim, "finish", lambda self, results: (away(), finish(self, results))[1])
        else:
            at_moment(patch, layer, moment, once(outage))
        done = ingest(lake, small_csv(tmp_path, "a.csv"), small_csv(tmp_path, "b.csv"))
    assert [line["status"] for line in done.lines] == ["ready", "ready"], done
    server.settle()
    check(**each(9))


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "moment"), [("silver", "before"), ("gold", "after")])
def test_a_long_outage_of_the_database_is_gone_on_from_with_the_next_command(
    lake: Command, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: str, moment: str
) -> None:
    monkeypatch.setenv("LAKE_RETRY_SECONDS", "1")
    monkeypatch.setenv("LAKE_LEASE_SECONDS", "5")
    assert ingest(lake, small_csv(tmp_path, "other.csv")).code == 0
    path = small_csv(tmp_path, "a.csv")
    began = time.monotonic()
    with monkeypatch.context() as patch:
        at_moment(patch, layer, moment, server.kill)
        done = ingest(lake, path)
    assert time.monotonic() - began < 15
    assert done.code == 1
    assert done.error.startswith("lake: The ingest database")
    assert one_sentence(done.error.strip())
    server.start()
    done = ingest(lake, path)
    assert done.code == 0, done
    assert [line["status"] for line in done.lines] == ["duplicate"]
    check(**each(6))


def test_no_database_at_all(lake: Command, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_RETRY_SECONDS", "0.2")
    server.stop()
    for words in (("ingest", str(small_csv(tmp_path)), *PLACE), ("files",), ("show", "gold", DATASET)):
        done = lake(*words)
        assert done.code == 1
        assert one_sentence(done.error.strip())
    server.start()
    assert ingest(lake, small_csv(tmp_path)).code == 0


@pytest.mark.parametrize("rows", [0, 3])
def test_an_interrupt_right_after_a_commit(
    lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """What was committed stays whole, and the next command goes on from there.

    Without rows before, it is the commit that creates the table.
    """
    if rows:
        assert ingest(lake, small_csv(tmp_path, "before.csv", rows)).code == 0

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        at_moment(patch, "silver", "after", interrupt)
        assert ingest(lake, small_csv(tmp_path)).code == 130
    check()
    assert [line["status"] for line in ingest(lake, small_csv(tmp_path)).lines] == ["duplicate"]
    check(**each(rows + 3))


@pytest.mark.parametrize("how", ["gone", "a file"])
def test_raw_storage_is_away_while_a_file_is_read(lake: Command, tmp_path: Path, how: str) -> None:
    with Lake() as opened:
        (upload,) = opened.upload([small_csv(tmp_path)], NAME)
        assert upload.file is not None
        raw = Path(opened.settings.raw)
        raw.rename(tmp_path / "elsewhere")
        if how == "a file":
            raw.touch()
        (file,) = opened.process(NAME, [upload.file.file_id])
    assert file.status == "failed"
    assert file.reason is not None
    assert one_sentence(file.reason)
    raw.unlink(missing_ok=True)
    (tmp_path / "elsewhere").rename(raw)
    assert lake("reprocess", file.file_id, "--json").lines[0]["status"] == "ready"
    check(**each(3))


def test_the_warehouse_is_no_folder(lake: Command, tmp_path: Path) -> None:
    warehouse = tmp_path / "home" / "warehouse"
    warehouse.parent.mkdir()
    warehouse.touch()
    done = ingest(lake, small_csv(tmp_path))
    (line,) = done.lines
    assert (done.code, line["status"]) == (1, "failed")
    assert str(warehouse) in line["reason"]
    assert one_sentence(line["reason"])
    warehouse.unlink()
    assert lake("reprocess", line["file_id"], "--json").lines[0]["status"] == "ready"
    check(**each(3))


def test_the_warehouse_turns_read_only(
    lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Callable[[str], Disk]
) -> None:
    mounted = disk("16m").folder

    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(mounted)], check=True)

    monkeypatch.setenv("LAKE_WAREHOUSE", str(mounted / "warehouse"))
    assert ingest(lake, small_csv(tmp_path, "other.csv")).code == 0
    with monkeypatch.context() as patch:
        at_moment(patch, "silver", "begin", lambda: remount("ro"))
        done = ingest(lake, small_csv(tmp_path))
    (line,) = done.lines
    assert done.code == 1
    assert line["status"] in ("failed", "failing")
    assert "read-only" in line["reason"].lower()
    assert one_sentence(line["reason"])
    shown = lake("show", "gold", DATASET, "--json")
    assert len(shown.lines) == 3
    remount("rw")
    assert lake("reprocess", line["file_id"], "--json").lines[0]["status"] == "ready"
    check(**each(6))


def test_the_temporary_folder_is_no_folder(lake: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tmp"
    place.touch()
    monkeypatch.setenv("LAKE_TEMP_DIR", str(place))
    done = ingest(lake, small_csv(tmp_path))
    assert (done.code, done.lines[0]["status"]) == (1, "failed")
    assert str(place) in done.lines[0]["reason"]
    place.unlink()
    assert ingest(lake, small_csv(tmp_path)).code == 0
    check(**each(3))
