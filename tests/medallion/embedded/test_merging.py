"""Small data files of gold are put together as they come, and the rows are what they were."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_lake_provider.errors import RecordsDisagree
from airflow_lake_provider.medallion.embedded import merging
from airflow_lake_provider.medallion.embedded.merging import MERGED_TOGETHER, SMALL_BYTES, to_merge
from airflow_lake_provider.medallion.embedded.tables import live_files, load
from tests.medallion.embedded.conftest import Subject
from tests.medallion.embedded.model import ModelFile
from tests.medallion.embedded.test_engine import check, no_stray_data_files

# Each with a row of its own and one that others have too, the later ones with one more column.
FILES = [
    ModelFile(("a", "b"), ((str(number), "x"), (str(number % 3), "y")))
    if number < 9
    else ModelFile(("b", "a", "c"), (("x", str(number), "2024-01-31"), ("y", str(number % 3), "")))
    for number in range(20)
]


class Listed:
    """A data file of which only its size matters."""

    def __init__(self, rows: int, size: int = 1) -> None:
        self.record_count = rows
        self.file_size_in_bytes = size


def gold_files(dataset: Subject) -> list[int]:
    return [f.record_count for f in live_files(load(dataset.engine._catalog, dataset.name, "gold"))]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MERGED_TOGETHER", 4)


def test_only_many_of_one_size_become_one() -> None:
    few = [Listed(100)] * (MERGED_TOGETHER - 1)
    assert to_merge(few) == []  # type: ignore[arg-type]
    large = [Listed(100, SMALL_BYTES)] * 100
    assert to_merge([*large, *few, Listed(5_000)]) == []  # type: ignore[arg-type]
    sixteenth = Listed(255)
    assert to_merge([*large, *few, Listed(5_000), sixteenth]) == [*few, sixteenth]  # type: ignore[arg-type]


def test_each_row_is_written_a_few_times_however_many_files_come() -> None:
    files: list[Listed] = []
    written = most = 0
    for _ in range(20_000):
        group = to_merge(files)  # type: ignore[arg-type]
        if group:
            files = [f for f in files if f not in group] + [Listed(sum(f.record_count for f in group))]
            written += sum(f.record_count for f in group)
        files.append(Listed(1))
        most = max(most, len(files))
    assert sum(f.record_count for f in files) == 20_000
    assert written / 20_000 < 4
    assert most < 70


@pytest.mark.usefixtures("soon")
def test_rows_stay_what_they_are(dataset: Subject) -> None:
    work = [dataset.work(file.csv()) for file in FILES]
    most = 0
    for number, item in enumerate(work):
        dataset.ingest(item)
        most = max(most, len(gold_files(dataset)))
        if number % 3 == 0:
            check(dataset, FILES[: number + 1])
    assert most <= 8
    no_stray_data_files(dataset)
    before = Counter(dataset.rows("gold", system=True))
    dataset.rebuild()
    assert Counter(dataset.rows("gold", system=True)) == before
    dataset.take_out(work[3].file_id, work[12].file_id)
    check(dataset, [file for number, file in enumerate(FILES) if number not in (3, 12)])


@pytest.mark.usefixtures("soon")
def test_a_file_is_read_again_from_among_others(dataset: Subject) -> None:
    work = [dataset.work(file.csv()) for file in FILES]
    for item in work[:14]:
        dataset.ingest(item)
    for number in (2, 13):
        dataset.ingest(dataset.work(FILES[number].csv(), earlier="same", file_id=work[number].file_id))
    check(dataset, FILES[:14])
    no_stray_data_files(dataset)


@pytest.mark.usefixtures("soon")
def test_nothing_is_committed_where_rows_got_lost(dataset: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in FILES[:4]:
        dataset.ingest(dataset.work(file.csv()))
    before = dataset.rows("gold", system=True)
    real = merging.copy_query

    def losing(connection: object, sql: str, *args: object, **options: object) -> object:
        return real(connection, f"{sql} LIMIT 1", *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(merging, "copy_query", losing)
    with pytest.raises(RecordsDisagree, match="4 data files have 7 rows"):
        dataset.ingest(dataset.work(FILES[9].csv()))
    assert dataset.rows("gold", system=True) == before
