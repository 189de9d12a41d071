"""The engine against the plain-Python model: any files, any batches, any breaking off and starting over."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_lake_provider.errors import LeaseLost
from airflow_lake_provider.medallion.embedded.engine import EmbeddedEngine
from airflow_lake_provider.medallion.embedded.parquet import local_path
from airflow_lake_provider.medallion.embedded.tables import live_files, load
from airflow_lake_provider.medallion.embedded.update import DatasetUpdate
from tests.medallion.embedded.conftest import Subject
from tests.medallion.embedded.model import ModelFile, tables
from tests.medallion.types.reference import Rules

# Texts that move types, that look alike and are not, and that are equal as values though not as texts.
TEXTS = [
    "", " ", "1", "1.0", "1.50", "1.5", " 2 ", "-3", "007", "x", "X", "NA", "true", "FALSE", "true ", "2024-01-31",
    "2024-01-31T10:00", "2024-01-31 10:00:00", "31/01/2024", "01/02/2024", "1234567890123456", "0.1",
    "12345678901234567890", "2024-01-31T10:00Z", "2024-01-31 11:00+01:00", "a\nb", "ä",
]  # fmt: skip


@st.composite
def model_files(draw: st.DrawFn) -> ModelFile:
    columns = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True))
    # Few texts to a file, so that columns often keep a type and rows often repeat.
    pool = draw(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4))
    row = st.tuples(*[st.sampled_from(pool)] * len(columns))
    rows = draw(st.lists(row, max_size=6))
    return ModelFile(tuple(columns), tuple(rows))


batches = st.lists(st.lists(model_files(), min_size=1, max_size=3), min_size=1, max_size=4)
slow_enough = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def check(dataset: Subject, files: list[ModelFile]) -> None:
    """Compare all that the tables show with the model."""
    expected = tables(files, Rules())
    silver = [row for rows in expected.silver for row in rows]
    for layer in ("silver", "gold"):
        found = {name: "decimal" if kind.startswith("decimal") else kind for name, kind in dataset.types(layer).items()}
        assert found == {name: kind.partition("(")[0] for name, kind in expected.types.items()}
    assert dataset.rows("silver") == silver
    assert sorted(dataset.rows("gold"), key=lambda row: [cell or "" for cell in row]) == expected.gold
    assert len(dataset.rows("bronze")) == sum(len(file.rows) for file in files)


@slow_enough
@given(batches=batches)
@example(batches=[[ModelFile(("a",), (("1",), ("1.0",)))], [ModelFile(("a",), (("1.00",), ("x",)))]])
@example(batches=[[ModelFile(("a",), (("01/02/2024",),))], [ModelFile(("a",), (("31/01/2024",),))]])
@example(batches=[[ModelFile(("a",), (("",),))], [ModelFile(("a", "b"), (("2024-01-31", ""),))]])
def test_any_files_in_any_batches(engine: EmbeddedEngine, tmp_path: Path, batches: list[list[ModelFile]]) -> None:
    dataset = Subject(engine, tmp_path)
    files: list[ModelFile] = []
    for batch in batches:
        outcomes = dataset.ingest(*(dataset.work(file.csv()) for file in batch))
        assert [outcome.status for outcome in outcomes] == ["ready"] * len(batch)
        files += batch
        check(dataset, files)
    incremental = {layer: dataset.rows(layer, system=True) for layer in ("silver", "gold")}
    counts = dataset.rebuild()
    for layer, rows in incremental.items():
        assert sorted(map(repr, dataset.rows(layer, system=True))) == sorted(map(repr, rows))
        assert counts[layer] == len(rows)


@slow_enough
@given(
    first=st.lists(model_files(), max_size=2),
    batch=st.lists(model_files(), min_size=1, max_size=3),
    at=st.integers(0, 2),
)
def test_an_attempt_that_breaks_off_is_made_again(
    engine: EmbeddedEngine, tmp_path: Path, first: list[ModelFile], batch: list[ModelFile], at: int
) -> None:
    """The worker loses its lease before the commit of bronze, silver or gold; the next one starts over."""
    dataset = Subject(engine, tmp_path)
    if first:
        dataset.ingest(*(dataset.work(file.csv()) for file in first))
    passed = 0

    def fence() -> None:
        nonlocal passed
        passed += 1
        if passed > at:
            raise LeaseLost("another worker has taken over")

    work = [dataset.work(file.csv()) for file in batch]
    broke_off = False
    try:
        dataset.ingest(*work, fence=fence)
    except LeaseLost:
        broke_off = True
    # Files without rows and without a new column leave a table as it is: nothing to commit there.
    assert broke_off or at > 0 or not any(file.rows for file in batch)
    again = [
        dataset.work(file.csv(), earlier="same", file_id=item.file_id) for file, item in zip(batch, work, strict=True)
    ]
    # Alone, as files are once they have died together.
    for item in again:
        dataset.ingest(item)
    check(dataset, first + batch)
    no_stray_data_files(dataset)


@slow_enough
@given(files=st.lists(model_files(), min_size=2, max_size=4), which=st.integers(0, 3), other=model_files())
def test_a_file_that_is_read_again_is_as_if_it_had_come_so(
    engine: EmbeddedEngine, tmp_path: Path, files: list[ModelFile], which: int, other: ModelFile
) -> None:
    dataset = Subject(engine, tmp_path)
    work = [dataset.work(file.csv()) for file in files]
    dataset.ingest(*work)
    which %= len(files)
    dataset.ingest(dataset.work(other.csv(), earlier="other", file_id=work[which].file_id))
    files[which] = other
    check(dataset, files)


@slow_enough
@given(files=st.lists(model_files(), min_size=1, max_size=4), gone=st.sets(st.integers(0, 3), min_size=1))
def test_taken_out_is_as_if_it_had_never_come(
    engine: EmbeddedEngine, tmp_path: Path, files: list[ModelFile], gone: set[int]
) -> None:
    dataset = Subject(engine, tmp_path)
    work = [dataset.work(file.csv()) for file in files]
    dataset.ingest(*work[:1])
    if work[1:]:
        dataset.ingest(*work[1:])
    dataset.take_out(*(item.file_id for n, item in enumerate(work) if n in gone))
    rest = [file for n, file in enumerate(files) if n not in gone]
    if rest:
        check(dataset, rest)
    else:
        assert [load(engine._catalog, dataset.name, layer) for layer in ("bronze", "silver", "gold")] == [None] * 3


def no_stray_data_files(dataset: Subject) -> None:
    """Every Parquet file under the tables' locations is named by some snapshot's history or is live."""
    for layer in ("bronze", "silver", "gold"):
        table = load(dataset.engine._catalog, dataset.name, layer)
        assert table is not None
        named = {
            local_path(entry.data_file.file_path)
            for snapshot in table.snapshots()
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        }
        assert {local_path(f.file_path) for f in live_files(table)} <= named
        folder = local_path(table.location()) / "data"
        assert (set(folder.iterdir()) if folder.exists() else set()) <= named


def test_large_files_have_data_files_of_their_own(dataset: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_lake_provider.medallion.embedded import bronze

    monkeypatch.setattr(bronze, "SMALL_FILE_BYTES", 0)
    monkeypatch.setattr(dataset.engine, "_target_file_bytes", 1)
    rows = "".join(f"{n % 40000},{n % 7}\n" for n in range(400_000))
    dataset.ingest(dataset.work("id,v\n" + rows))
    table = load(dataset.engine._catalog, dataset.name, "bronze")
    assert len(live_files(table)) > 1
    silver = [(int(row[0]), int(row[1])) for row in dataset.rows("silver")]  # type: ignore[call-overload]
    expected = list(dict.fromkeys((n % 40000, n % 7) for n in range(400_000)))
    assert silver == expected
    numbers = [int(row[3]) for row in dataset.rows("silver", system=True)]  # type: ignore[call-overload]
    assert numbers == sorted(numbers)
    assert len(dataset.rows("gold")) == len(expected)
    dataset.ingest(dataset.work("id,v\n5,5\n-1,0\n"))
    assert len(dataset.rows("gold")) == len(expected) + 1


def test_equal_hashes_do_not_make_equal_rows(dataset: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hash that is the same for all rows, only comparing the values tells them apart."""
    from airflow_lake_provider.medallion.types import query

    monkeypatch.setattr(query, "row_hash_sql", lambda *_: "CAST(7 AS BIGINT)")
    dataset.ingest(dataset.work("a,b\n1,x\n2,y\n1,x\n"))
    dataset.ingest(dataset.work("a,b\n2,y\n3,\n,x\n"))
    assert dataset.rows("silver") == [("1", "x"), ("2", "y"), ("2", "y"), ("3", None), (None, "x")]
    assert len(dataset.rows("gold")) == 4
    dataset.rebuild()
    assert len(dataset.rows("gold")) == 4


def test_a_new_column_changes_no_hash(dataset: Subject) -> None:
    dataset.ingest(dataset.work("a,b\n1,x\n"))
    before = dataset.rows("gold", system=True)
    dataset.ingest(dataset.work("b,a,c\nx,1,\ny,2,3\n"))
    after = dataset.rows("gold", system=True)
    assert after[0][-1] == before[0][-1]
    assert len(after) == 2


def test_a_column_without_values_takes_a_type_without_a_rewrite(
    dataset: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset.ingest(dataset.work("a,b\n1,\n"))
    before = {f.file_path for f in live_files(load(dataset.engine._catalog, dataset.name, "silver"))}
    monkeypatch.setattr(DatasetUpdate, "_bronze_sources", lambda *_: pytest.fail("silver was computed anew"))
    dataset.ingest(dataset.work("a,b\n2,2024-01-31\n"))
    after = {f.file_path for f in live_files(load(dataset.engine._catalog, dataset.name, "silver"))}
    assert before < after
    assert dataset.types("gold") == {"a": "bigint", "b": "date"}
    assert dataset.rows("gold") == [("1", None), ("2", "2024-01-31")]


def test_wide_files(dataset: Subject) -> None:
    names = [f"c{n}" for n in range(1_200)]
    lines = [",".join(names), *(",".join(str(row * n % 97) for n in range(1_200)) for row in range(1, 4))]
    dataset.ingest(dataset.work("\n".join(lines) + "\n"))
    (outcome,) = dataset.ingest(dataset.work("\n".join([lines[0], lines[2], lines[1]]) + "\n"))
    assert outcome.rows == {"bronze": 2, "silver": 2, "gold": 0}
    assert len(dataset.types("gold")) == 1_200
