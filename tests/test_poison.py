"""One file among fifty whose job needs more memory than it may use: it alone fails, and takes nothing along."""

from __future__ import annotations

import random
from pathlib import Path

import psycopg
import pytest

from airflow_lake_provider.dataset import LAYERS, DatasetName
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.medallion.embedded.tables import load
from tests.command import Command
from tests.leftovers import left_elsewhere, left_in_raw, left_in_warehouse, wrong_events
from tests.medallion.embedded.model import ModelFile, tables
from tests.medallion.types.reference import Rules
from tests.outages import one_sentence
from tests.workers import canonical_rows, processes_of, work

pytestmark = pytest.mark.slow

NAME = DatasetName("v", "p", "f")
OTHER = DatasetName("v", "p", "other")
FILES = 50
POISON = 31
# Twice what a job with these files needs at its peak, and half of what it needs with the one that has the long field.
LIMIT = "500MB"
LONG_FIELD = 64_000_000


def _small(number: int) -> ModelFile:
    """Ten rows, of which the file has one twice and the next file has one as well."""
    rows = [(str(number * 8 + n), f"name {n}") for n in range(9)]
    return ModelFile(("id", "name"), (*rows, rows[0]))


def _write(folder: Path, files: dict[str, ModelFile]) -> list[Path]:
    for name, file in files.items():
        (folder / name).write_text(file.csv())
    return [folder / name for name in files]


def _places(lake: Lake, dataset: DatasetName) -> list[str]:
    """Where each table is now: it is another place after any commit."""
    found = [load(lake.catalog, dataset, layer) for layer in LAYERS]
    return [table.metadata_location for table in found if table is not None]


def test_a_file_that_needs_too_much_memory(
    lake: Command, tmp_path: Path, ledger_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_JOB_MEMORY_LIMIT", LIMIT)
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "2")
    before = {"before.csv": _small(1000), "before too.csv": _small(1001)}
    files = {f"{number}.csv": _small(number) for number in range(FILES)}
    with Lake() as opened, psycopg.connect(ledger_dsn, autocommit=True) as connection:
        for dataset in (NAME, OTHER):
            earlier = opened.upload(_write(tmp_path, before), dataset)
        first = work(tmp_path / "before.log")
        assert first.code == 0, first.said
        others = _places(opened, OTHER)
        paths = _write(tmp_path, files)
        digits = random.Random(7).randbytes(LONG_FIELD // 2).hex()
        paths[POISON].write_text(f'id,name\n1,"{digits}"\n')
        ids = [item.file.file_id for item in opened.upload(paths, NAME) if item.file is not None]
        assert len(ids) == FILES

        done = work(tmp_path / "work.log")
        assert done.code == 1, done.said
        ended = opened.ledger.by_ids(ids)
        assert [file.name for file in ended if file.status != "ready"] == [paths[POISON].name], done.said
        poison = ended[POISON]
        assert poison.status == "failed"
        assert poison.reason is not None
        assert one_sentence(poison.reason)
        assert "died 2 times; the last time the job was killed" in poison.reason
        assert "of memory, more than the 500 MB that it may" in poison.reason

        # All fifty were in the claim that died first, and then one alone died twice.
        assert [file.name for file in ended if file.deaths] == []
        for file in ended:
            events = opened.ledger.events(file.file_id)
            claims = [event.data["claimed_with"] for event in events if "claimed_with" in event.data]
            deaths = [event.data["died"] for event in events if "died" in event.data]
            # The last claim of the one that fails is that of its clean-up.
            assert claims == ([FILES, 1, 1, 1] if file is poison else [FILES, 1])
            assert deaths == [True] * (3 if file is poison else 1)

        del files[paths[POISON].name]
        expected = tables([*before.values(), *files.values()], Rules())
        assert canonical_rows(opened, NAME, "bronze") == [
            row for file in (*before.values(), *files.values()) for row in file.rows
        ]
        assert canonical_rows(opened, NAME, "silver") == [row for rows in expected.silver for row in rows]
        assert sorted(canonical_rows(opened, NAME, "gold"), key=str) == sorted(expected.gold, key=str)

        assert _places(opened, OTHER) == others
        assert len(others) == len(LAYERS)
        unharmed = opened.ledger.by_ids([item.file.file_id for item in earlier if item.file is not None])
        assert [(file.status, file.attempt, file.deaths) for file in unharmed] == [("ready", 1, 0)] * len(before)
        assert processes_of(opened.settings.home) == []
        everything = opened.ledger.files()
        assert [
            *wrong_events(opened, everything),
            *left_in_warehouse(opened, [NAME, OTHER]),
            *left_in_raw(opened, everything),
            *left_elsewhere(opened, connection),
        ] == []
