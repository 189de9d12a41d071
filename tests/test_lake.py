"""What a user meets: settings, re-reading, rebuilding, bad input; on the real ledger, catalog and engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.dataset import LAYERS, DatasetName
from airflow_lake_provider.lake import Lake
from tests.command import Command, Done

PLACE = ("--vendor", "v", "--project", "p", "--folder", "f")
DATASET = "v/p/f"


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> str:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return str(path)


def ingest(lake: Command, *words: str) -> Done:
    return lake("ingest", *words, *PLACE, "--json")


def gold(lake: Command) -> list[Any]:
    return lake("show", "gold", DATASET, "--json").lines


def types(lake: Command, layer: str = "gold") -> dict[str, str]:
    (columns,) = lake("schema", layer, DATASET, "--json").lines
    return {column["name"]: column["type"] for column in columns}


def test_several_files_are_one_batch_and_one_bad_file_fails_alone(lake: Command, tmp_path: Path) -> None:
    good = write(tmp_path, "good.csv", "id,v\n1,x\n")
    bad = write(tmp_path, "bad.csv", 'id,v\n2,"open\n')
    other = write(tmp_path, "other.csv", "id,v\n1,x\n3,y\n")
    same = write(tmp_path, "same.csv", "id,v\n1,x\n")
    done = ingest(lake, good, bad, other, same, str(tmp_path / "absent.csv"))
    assert done.code == 1
    assert [line["status"] for line in done.lines] == ["ready", "failed", "ready", "duplicate", "failed"]
    assert done.lines[3]["file_id"] == done.lines[0]["file_id"]
    assert [line["file"] for line in done.lines] == ["good.csv", "bad.csv", "other.csv", "same.csv", "absent.csv"]
    assert done.lines[2]["rows"] == {"bronze": 2, "silver": 2, "gold": 1}
    assert gold(lake) == [["1", "x"], ["3", "y"]]


def test_a_duplicate_waits_for_the_first_and_takes_over_if_that_fails(lake: Command, tmp_path: Path) -> None:
    text = 'id,v\n1,"open\n'
    done = ingest(lake, write(tmp_path, "a.csv", text), write(tmp_path, "b.csv", text))
    assert [line["status"] for line in done.lines] == ["failed", "failed"]


def test_settings_change_types_and_read_again(lake: Command, tmp_path: Path) -> None:
    ingest(lake, write(tmp_path, "a.csv", "id,amount\n1,NA\n2,3\n"))
    assert types(lake) == {"id": "bigint", "amount": "string"}
    done = lake("settings", DATASET, "null_tokens=NA", "--json")
    assert done.code == 0, done.error
    assert done.lines == [{"null_tokens": ["NA"]}]
    assert types(lake) == {"id": "bigint", "amount": "bigint"}
    assert gold(lake) == [["1", None], ["2", "3"]]
    assert lake("settings", DATASET, "null_tokens=", "--json").lines == [{}]
    assert types(lake) == {"id": "bigint", "amount": "string"}
    assert gold(lake) == [["1", "NA"], ["2", "3"]]


def test_a_setting_that_does_not_exist_is_named(lake: Command) -> None:
    done = lake("settings", DATASET, "delimeter=;")
    assert done.code == 1
    assert "delimeter" in done.error
    assert "delimiter" in done.error


def test_overrides_are_kept_with_the_file(lake: Command, tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "1;5\n2;6\n")
    (line,) = ingest(lake, path, "--header", "yes", "--delimiter", ";").lines
    assert line["records"] == 1
    assert types(lake) == {"column_1": "bigint", "column_2": "bigint"} or list(types(lake)) == ["1", "5"]
    (again,) = lake("reprocess", line["file_id"], "--header", "no", "--delimiter", ";", "--json").lines
    assert (again["status"], again["records"]) == ("ready", 2)
    assert types(lake) == {"column_1": "bigint", "column_2": "bigint"}
    assert gold(lake) == [["1", "5"], ["2", "6"]]
    (same,) = lake("reprocess", line["file_id"], "--json").lines
    assert same["records"] == 2


def test_reading_again_keeps_the_rows_of_other_files(lake: Command, tmp_path: Path) -> None:
    first = write(tmp_path, "a.csv", "id,v\n1,x\n2,NA\n")
    second = write(tmp_path, "b.csv", "id,v\n2,NA\n3,z\n")
    a, b = ingest(lake, first, second).lines
    assert (a["rows"]["gold"], b["rows"]["gold"]) == (2, 1)
    done = lake("reprocess", a["file_id"], "--null-tokens", "NA", "--json")
    assert done.code == 0, done.error
    assert gold(lake) == [["1", "x"], ["2", None], ["2", "NA"], ["3", "z"]]
    bronze = lake("show", "bronze", DATASET, "--json").lines
    assert bronze == [["1", "x"], ["2", "NA"], ["2", "NA"], ["3", "z"]]


def test_a_file_that_can_no_longer_be_read_leaves_nothing(lake: Command, tmp_path: Path) -> None:
    a, b = ingest(
        lake, write(tmp_path, "a.csv", "id,v\n1,x\n2,é\n", "cp1252"), write(tmp_path, "b.csv", "id,v\n3,z\n")
    ).lines
    done = lake("reprocess", a["file_id"], "--encoding", "utf-8", "--json")
    assert done.code == 1
    assert done.lines[0]["status"] == "failed"
    assert "line 3" in done.lines[0]["reason"]
    assert gold(lake) == [["3", "z"]]
    assert lake("show", "bronze", DATASET, "--json").lines == [["3", "z"]]
    done = lake("reprocess", a["file_id"], "--encoding", "cp1252", "--json")
    assert done.code == 0
    assert gold(lake) == [["1", "x"], ["2", "é"], ["3", "z"]]
    assert b["status"] == "ready"


def test_rebuild_changes_nothing(lake: Command, tmp_path: Path) -> None:
    for number in range(4):
        rows = "".join(f"{n % 7},{n * number}\n" for n in range(20))
        ingest(lake, write(tmp_path, f"{number}.csv", "a,b\n" + rows))
    before = lake("show", "gold", DATASET, "--columns", "all", "--json").lines
    silver = lake("show", "silver", DATASET, "--columns", "all", "--json").lines
    (line,) = lake("rebuild", DATASET, "--json").lines
    assert line["rows"] == {"bronze": 80, "silver": len(silver), "gold": len(before)}
    assert lake("show", "gold", DATASET, "--columns", "all", "--json").lines == before
    assert lake("show", "silver", DATASET, "--columns", "all", "--json").lines == silver


@pytest.mark.parametrize("part", ["", "a b", "../x", "a/b", "ä", "x" * 64, "-a", "a\x00b"])
def test_a_dataset_name_that_cannot_be_used(lake: Command, tmp_path: Path, part: str) -> None:
    path = write(tmp_path, "a.csv", "id\n1\n")
    done = lake("ingest", path, "--vendor", part, "--project", "p", "--folder", "f")
    assert done.code in (1, 2)
    assert "vendor" in done.error
    assert lake("files", "--json").lines == []


def test_two_datasets_with_one_table_name(lake: Command, tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "id\n1\n")
    assert lake("ingest", path, "--vendor", "a", "--project", "b__c", "--folder", "d").code == 0
    done = lake("ingest", path, "--vendor", "a__b", "--project", "c", "--folder", "d")
    assert done.code == 1
    assert "a/b__c/d" in done.error
    assert len(lake("files", "--json").lines) == 1


def test_a_name_with_300_characters(lake: Command, tmp_path: Path) -> None:
    done = ingest(lake, str(tmp_path / ("n" * 296 + ".csv")))
    assert done.code == 1
    assert "name" in done.lines[0]["reason"]
    assert lake("files", "--json").lines == []


@pytest.mark.parametrize("change", ["shrinks", "vanishes", "changes"])
def test_a_file_that_is_not_what_was_uploaded(lake: Command, tmp_path: Path, change: str) -> None:
    from airflow_lake_provider.dataset import DatasetName
    from airflow_lake_provider.lake import Lake

    name = DatasetName.parse(DATASET)
    with Lake() as opened:
        (upload,) = opened.upload([Path(write(tmp_path, "a.csv", "id,v\n1,x\n2,y\n"))], name)
        assert upload.file is not None
        raw = Path(upload.file.raw_uri)
        if change == "shrinks":
            raw.write_text("id,v\n1,x\n")
        elif change == "vanishes":
            raw.unlink()
        else:
            raw.write_text("id,v\n1,x\n2,z\n")
        (file,) = opened.process(name, [upload.file.file_id])
    assert file.status == "failed"
    assert file.reason
    assert lake("show", "bronze", DATASET).code == 1


def test_two_processes_in_one_lake(lake: Command, tmp_path: Path) -> None:
    """Both upload into one dataset at the same time, and into one of their own."""
    processes = []
    for worker in range(2):
        paths = [write(tmp_path, f"{worker}_{n}.csv", f"id,w\n{n},{worker}\n") for n in range(3)]
        words = [sys.executable, "-m", "airflow_lake_provider.cli", "ingest", *paths, *PLACE, "--json"]
        processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, env=dict(os.environ), text=True))
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert [json.loads(line)["status"] for line in output.splitlines()] == ["ready"] * 3
    assert gold(lake) == sorted([str(n), str(worker)] for n in range(3) for worker in range(2))


def test_the_rows_of_a_show_can_be_limited(lake: Command, tmp_path: Path) -> None:
    ingest(lake, write(tmp_path, "a.csv", "id\n" + "".join(f"{n}\n" for n in range(50))))
    assert len(lake("show", "silver", DATASET, "--json", "--limit", "7").lines) == 7
    assert len(lake("show", "silver", DATASET, "--json").lines) == 50
    text = lake("show", "silver", DATASET, "--limit", "2").output
    assert text == "id\n0\n1\n"


def test_events_tell_the_story_of_a_file(lake: Command, tmp_path: Path) -> None:
    (line,) = ingest(lake, write(tmp_path, "a.csv", "id,secret\n1,hush\n")).lines
    events = lake("events", line["file_id"], "--json").lines
    assert [event["to"] for event in events if event["to"] != event["from"]] == ["uploaded", "processing", "ready"]
    assert {"read", "bronze", "silver", "gold"} <= {event["stage"] for event in events}
    assert "hush" not in json.dumps(events)


def test_contracts(lake: Command, tmp_path: Path) -> None:
    assert lake("settings", DATASET, 'types={"id": "bigint", "v": "double"}', "contract=freeze").code == 0
    assert ingest(lake, write(tmp_path, "a.csv", "id,v\n1,2.5\n")).code == 0
    (line,) = ingest(lake, write(tmp_path, "b.csv", "id,v\n2,3\n3,none\n")).lines
    assert line["status"] == "failed"
    assert "v" in line["reason"]
    assert "none" not in line["reason"]
    (line,) = ingest(lake, write(tmp_path, "c.csv", "id,v,more\n4,5,6\n")).lines
    assert (line["status"], "more" in line["reason"]) == ("failed", True)
    assert gold(lake) == [["1", "2.5"]]
    assert lake("settings", DATASET, "contract=reject_row").code == 0
    (line,) = ingest(lake, write(tmp_path, "d.csv", "id,v\n7,8\n9,none\n")).lines
    assert line["status"] == "ready"
    assert line["rows"] == {"bronze": 2, "silver": 1, "gold": 1}
    assert len(line["notes"]) == 1
    assert "none" not in line["notes"][0]
    assert types(lake) == {"id": "bigint", "v": "double"}
    assert gold(lake) == [["1", "2.5"], ["7", "8"]]


def test_tables_that_are_gone_are_made_again_from_the_uploads(lake: Command, tmp_path: Path) -> None:
    first = ingest(lake, write(tmp_path, "a.csv", "id,v\n1,x\n2,y\n"))
    second = ingest(lake, write(tmp_path, "b.csv", "id,v\n2,y\n3,z\n"))
    before = gold(lake)
    with Lake() as opened:
        for layer in LAYERS:
            opened.catalog.drop_table(DatasetName.parse(DATASET).table(layer))
    done = lake("rebuild", DATASET)
    assert done.code == 1
    assert "lake reprocess" in done.error
    assert lake("reprocess", *(line["file_id"] for done in (first, second) for line in done.lines)).code == 0
    assert gold(lake) == before
    assert len(lake("show", "bronze", DATASET, "--json").lines) == 4
