"""Many workers with jobs of their own, and both killed at any time: every file ends ready, and each row is there once.

The moments of the kills are drawn with a seed, which the test's name tells; what they hit is up to the machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.lake import Lake
from tests.command import Command
from tests.leftovers import left_elsewhere, left_in_raw, left_in_warehouse, wrong_events
from tests.medallion.embedded.model import ModelFile, Row, tables
from tests.medallion.types.reference import Rules
from tests.workers import PATIENCE, WorkProcess, awaited, canonical_rows, is_gone, processes_of, work

pytestmark = pytest.mark.slow

DATASETS = [DatasetName("v", "p", f"d{number}") for number in range(20)]
FILES_EACH = 15
WORKERS = 8
BATCH = 8
VICTIMS = ["worker"] * 8 + ["job"] * 12
# A batch that died becomes as many jobs as it has files, and each takes more than a second to start: after so many,
# only files that are tried alone are hit.
BATCHES_HIT = 3


def _files(chance: random.Random, number: int) -> list[ModelFile]:
    """The files of a dataset: rows that repeat within a file and in other files, columns that come late or widen."""
    pool = [(str(n), f"name {n % 7}", f"2024-01-{n % 28 + 1:02}") for n in range(60)]
    widened = {0: "0.5", 1: "A7", 2: str(2**63)}.get(number % 4)
    files = []
    for place in range(FILES_EACH):
        rows = chance.choices(pool, k=chance.randint(4, 16))
        # The next file has this row as well, and no two files are the same.
        rows += [(str(1000 + place), "last", "2024-02-01"), (str(1001 + place), "last", "2024-02-01")]
        rows.append(rows[0])
        if widened is not None and place >= FILES_EACH // 2:
            rows.append((widened, "widens", "2024-03-01"))
        columns: tuple[str, ...] = ("id", "name", "day")
        if number % 3 == 0 and place >= 6:
            columns = (*columns, "more")
            rows = [(*row, str(int(chance.random() < 0.5))) for row in rows]  # type: ignore[misc]
        files.append(ModelFile(columns, tuple(rows)))
    return files


def _bronze(files: Sequence[ModelFile]) -> list[Row]:
    names = list(dict.fromkeys(name for file in files for name in file.columns))
    cells = (dict(zip(file.columns, row, strict=True)) for file in files for row in file.rows)
    return [tuple(row.get(name) for name in names) for row in cells]


@dataclass
class Crowd:
    """The workers, of which some are killed, and their jobs."""

    folder: Path
    chance: random.Random
    workers: list[WorkProcess] = field(default_factory=list)
    started: int = 0
    victims: list[str] = field(default_factory=list)
    batches_hit: int = 0

    def fill_up(self) -> None:
        """Start workers for those that are gone; one that went by itself has to have gone well."""
        for worker in [worker for worker in self.workers if worker.code is not None]:
            assert worker.code == 0, worker.said
            self.workers.remove(worker)
        while len(self.workers) < WORKERS:
            self.workers.append(WorkProcess(self.folder / f"{self.started}.log"))
            self.started += 1

    def kill(self, alone: set[int]) -> bool:
        """Kill a worker that has a job, which ends with it, or only its job; False where none may be hit.

        ``alone`` are the numbers of the workers that hold one file.
        """
        busy = [
            (worker, job)
            for worker in self.workers
            if (worker.pid in alone or self.batches_hit < BATCHES_HIT) and (job := worker.job()) is not None
        ]
        if not busy:
            return False
        worker, job = self.chance.choice(busy)
        self.batches_hit += worker.pid not in alone
        if self.victims.pop() == "worker":
            worker.kill()
            self.workers.remove(worker)
        else:
            with suppress(psutil.NoSuchProcess):
                job.kill()
        awaited(lambda: is_gone(job))
        return True


def _alone(connection: psycopg.Connection[Any]) -> set[int]:
    query = """
        SELECT split_part(lease_owner, ':', 2)::int FROM lake.datasets JOIN lake.files USING (lease_token)
        GROUP BY lease_owner HAVING count(*) = 1
    """
    return {number for (number,) in connection.execute(query)}


def _work_and_kill(crowd: Crowd, lake: Lake, connection: psycopg.Connection[Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    again = time.monotonic()
    while lake.ledger.unfinished():
        assert time.monotonic() < deadline, lake.ledger.status_counts()
        crowd.fill_up()
        if crowd.victims and time.monotonic() >= again and crowd.kill(_alone(connection)):
            again = time.monotonic() + crowd.chance.uniform(0.1, 2.5)
        time.sleep(0.05)


def _wrong(lake: Lake, ids: dict[DatasetName, list[str]], files: dict[DatasetName, list[ModelFile]]) -> list[str]:
    wrong = []
    for dataset, mine in files.items():
        expected = tables(mine, Rules())
        found = {layer: canonical_rows(lake, dataset, layer) for layer in ("bronze", "silver", "gold")}
        columns, _ = lake.schema(dataset, "silver")
        if {column.name: column.type for column in columns} != expected.types:
            wrong.append(f"{dataset} has the types {columns}, not {expected.types}")
        if found["bronze"] != _bronze(mine):
            wrong.append(f"bronze of {dataset} is {found['bronze']}, not {_bronze(mine)}")
        if found["silver"] != (silver := [row for rows in expected.silver for row in rows]):
            wrong.append(f"silver of {dataset} is {found['silver']}, not {silver}")
        if sorted(found["gold"], key=str) != sorted(expected.gold, key=str):
            wrong.append(f"gold of {dataset} is {found['gold']}, not {expected.gold}")
        for file, model in zip(lake.ledger.by_ids(ids[dataset]), mine, strict=True):
            if file.status != "ready" or file.counts is None or file.counts.bronze != len(model.rows):
                wrong.append(f"{file.name} of {dataset} is {file.status} with {file.counts}: {file.reason}")
    return wrong


@pytest.mark.parametrize("seed", [20])
def test_workers_and_jobs_are_killed_while_they_share_the_work(
    lake: Command, tmp_path: Path, ledger_dsn: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setenv("LAKE_LEASE_SECONDS", "5")
    monkeypatch.setenv("LAKE_MAX_ATTEMPTS", "100")
    monkeypatch.setenv("LAKE_BATCH_MAX_FILES", str(BATCH))
    monkeypatch.setenv("LAKE_DUCKDB_THREADS", "1")
    files = {dataset: _files(chance, number) for number, dataset in enumerate(DATASETS)}
    with Lake() as opened, psycopg.connect(ledger_dsn, autocommit=True) as connection:
        ids = {}
        for dataset, mine in files.items():
            paths = [tmp_path / f"{dataset.folder}_{number}.csv" for number in range(FILES_EACH)]
            for path, file in zip(paths, mine, strict=True):
                path.write_text(file.csv())
            ids[dataset] = [item.file.file_id for item in opened.upload(paths, dataset) if item.file is not None]
        crowd = Crowd(tmp_path, chance, victims=chance.sample(VICTIMS, len(VICTIMS)))
        try:
            _work_and_kill(crowd, opened, connection)
            for worker in crowd.workers:
                assert worker.wait() == 0, worker.said
        finally:
            for worker in crowd.workers:
                worker.kill()
        last = work(tmp_path / "last.log")
        assert last.code == 0, last.said
        assert crowd.victims == [], "the work was done before all were killed"
        assert processes_of(opened.settings.home) == []
        wrong = [
            *_wrong(opened, ids, files),
            *wrong_events(opened, opened.ledger.files()),
            *left_in_warehouse(opened, DATASETS),
            *left_in_raw(opened, opened.ledger.files()),
            *left_elsewhere(opened, connection),
        ]
        assert wrong == [], "\n".join(wrong)
