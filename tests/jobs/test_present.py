"""What the files in a dataset's tables say together: always what looking at each would tell, and with few looks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import CommitConflict
from airflow_lake_provider.jobs import present as jobs_present
from airflow_lake_provider.jobs.document import ingest_document
from airflow_lake_provider.jobs.present import join_present, present
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.ledger import Counts, File, Ledger, NewFile
from airflow_lake_provider.ledger import present as parts_module
from airflow_lake_provider.medallion.engine import FileColumn
from airflow_lake_provider.medallion.present import Joined
from airflow_lake_provider.medallion.stored import to_summary
from airflow_lake_provider.medallion.types import ColumnSummary

NAME = DatasetName.parse("v/p/f")
OTHER = DatasetName.parse("v/p/other")
COUNTS = Counts(1, 1, 1, 1)


class Files:
    """A dataset whose files become ready without anything being read."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger = ledger
        self._chance = random.Random(seed)
        self._number = 0

    def add(self, number: int, dataset: DatasetName = NAME) -> list[File]:
        """Upload files."""
        new = []
        for _ in range(number):
            self._number += 1
            file_id = f"{self._number:032x}"
            overrides = self._chance.choice([{}, {}, {"types": {"a": "string"}}])
            new.append(NewFile(file_id, f"{file_id}.csv", "file:///x", 1, f"{self._number:064x}", overrides))
        return self.ledger.upload(dataset, new)

    def work(self, *, fail: float = 0.0) -> None:
        """Take every file that waits to its end."""
        while (claim := self.ledger.claim("w", max_files=5)) is not None:
            with claim:
                for file in claim.files:
                    if claim.kind == "removal":
                        claim.removed(file.file_id)
                    elif self._chance.random() < fail:
                        claim.fail(file.file_id, "It fails.")
                    else:
                        claim.ready(file.file_id, COUNTS, self._summary())

    def some(self, *statuses: str) -> list[str]:
        """A few files in one of these states."""
        there = [file.file_id for file in self.ledger.files(NAME) if file.status in statuses]
        return self._chance.sample(there, min(len(there), self._chance.randint(1, 3)))

    def change(self) -> None:
        """Do one of the things that users do."""
        match self._chance.randrange(7):
            case 0 | 1:
                self.add(self._chance.randint(1, 4))
            case 2:
                self.ledger.archive(self.some("ready"))
            case 3:
                self.ledger.delete(self.some("ready", "archived"))
            case 4:
                self.ledger.restore(self.some("archived"))
            case 5:
                self.ledger.retry(self.some("failed"))
            case 6:
                self.ledger.reread(self.some("ready"), overrides={"date_order": "dmy"})
        if self._chance.random() < 0.8:
            self.work(fail=0.2)
        if self._chance.random() < 0.1:
            self.ledger.change_settings(NAME, {"date_order": self._chance.choice(["dmy", "mdy", None])})

    def _summary(self) -> dict[str, object]:
        columns = [
            FileColumn(name, name.upper(), ColumnSummary(count=self._chance.randint(0, 3), family="number"))
            for name in self._chance.sample("abcd", 2)
        ]
        return to_summary(columns)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "PART_FILES", 4)


def one_by_one(ledger: Ledger, without: list[str]) -> Joined:
    dataset = ledger.dataset(NAME)
    files = ledger.in_tables(dataset, without=without)
    return Joined(jobs_present._present_files(files, dataset.settings))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("small_parts")
def test_the_parts_always_say_what_the_files_say(opened: Lake, seed: int) -> None:
    ledger = opened.ledger
    files = Files(ledger, seed)
    chance = random.Random(seed)
    files.add(3)
    for _ in range(40):
        files.add(1, OTHER)
        files.change()
        ready = [file.file_id for file in ledger.files(NAME, statuses=["ready"])]
        without = chance.sample(ready, min(len(ready), chance.choice([0, 0, 0, 2])))
        assert join_present(ledger, ledger.dataset(NAME), without=without) == one_by_one(ledger, without)


@pytest.mark.usefixtures("small_parts")
def test_few_files_are_looked_at(opened: Lake) -> None:
    ledger = opened.ledger
    files = Files(ledger, 1)

    def looked_at() -> list[str]:
        dataset = ledger.dataset(NAME)
        seen = [file.file_id for part in ledger.parts_in_tables(dataset) for file in part.files]
        join_present(ledger, dataset, without=[])
        return seen

    first = [file.file_id for file in files.add(22)]
    files.work()
    assert looked_at() == first
    assert looked_at() == []
    (one,) = (file.file_id for file in files.add(1))
    files.work()
    assert looked_at() == [one]
    ledger.archive([first[5]])
    files.work()
    assert looked_at() == [first[4], first[6], first[7]]
    ledger.restore([first[5]])
    files.work()
    assert looked_at() == first[4:8]
    assert looked_at() == []
    ledger.change_settings(NAME, {"date_order": "dmy"})
    assert looked_at() == [*first, one]
    assert looked_at() == []


def test_a_job_that_needs_each_file_starts_over_where_they_have_changed(opened: Lake, tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        path = tmp_path / f"{number}.csv"
        path.write_text(f"a,b\n{number},x\n")
        paths.append(path)
    first, second, _ = (upload.file.file_id for upload in opened.upload(paths, NAME) if upload.file)
    opened.process(NAME, [first])
    opened.ledger.reread([second])
    claim = opened.ledger.claim("w")
    assert claim is not None
    with claim:
        document = ingest_document(claim, opened.ledger)
        assert [file.file_id for file in present(document, opened.ledger).files] != [second]
        opened.ledger.archive([first])
        with pytest.raises(CommitConflict, match="the work starts over"):
            _ = present(document, opened.ledger).files
