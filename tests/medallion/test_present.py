"""Joins of what files say: the same in any order and grouping, and through JSON."""

from __future__ import annotations

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lake_provider.medallion.dataset_settings import effective
from airflow_lake_provider.medallion.embedded.plan import plan
from airflow_lake_provider.medallion.engine import FileColumn, PresentFile
from airflow_lake_provider.medallion.present import Joined, Present
from airflow_lake_provider.medallion.types import ColumnSummary

NAMES = ["a", "b", "c", "d"]
SUMMARIES = [
    ColumnSummary(),
    ColumnSummary.text(2, plain=True),
    ColumnSummary.text(1, plain=False),
    ColumnSummary(count=3, family="number", integer_digits=2, significant_digits=2),
    ColumnSummary(count=1, family="number", fractions=True, integer_digits=1, scale=2, significant_digits=3),
    ColumnSummary(count=2, family="day_month", month_first=False, day_is_month=False, separator="/"),
    ColumnSummary(count=1, family="date"),
]
OVERRIDES: list[dict[str, object]] = [
    {},
    {"types": {"a": "string"}},
    {"types": {"a": "bigint"}},
    {"contract": "freeze", "types": {"b": "string", "z": "date"}},
    {"contract": "reject_row", "types": {"a": "bigint"}},
]


@st.composite
def present_files(draw: st.DrawFn) -> list[PresentFile]:
    files = []
    for number in range(draw(st.integers(0, 6))):
        names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
        columns = tuple(
            FileColumn(name, draw(st.sampled_from([None, name, name.upper()])), draw(st.sampled_from(SUMMARIES)))
            for name in names
        )
        rules = effective({"date_order": "dmy"}, draw(st.sampled_from(OVERRIDES)))
        files.append(PresentFile(f"{number:032x}", columns, rules))
    return files


@settings(deadline=None)
@given(files=present_files(), seed=st.integers(0, 1000))
def test_order_and_grouping_do_not_matter(files: list[PresentFile], seed: int) -> None:
    whole = Joined(files)
    chance = random.Random(seed)
    shuffled = chance.sample(files, len(files))
    cut, more = sorted(chance.randint(0, len(files)) for _ in range(2))
    parts = [Joined(shuffled[:cut]), Joined(shuffled[cut:more]), Joined(shuffled[more:])]
    chance.shuffle(parts)
    merged = Joined()
    for part in parts:
        merged.merge(Joined.from_dict(json.loads(json.dumps(part.to_dict()))))
    assert merged == whole
    assert merged.to_dict() == whole.to_dict()
    assert plan(merged) == plan(whole)


def test_columns_follow_the_files_in_the_order_of_their_upload() -> None:
    rules = effective({}, {})
    number = SUMMARIES[3]

    def file(number_of_it: int, *columns: tuple[str, str | None]) -> PresentFile:
        return PresentFile(f"{number_of_it:032x}", tuple(FileColumn(name, doc, number) for name, doc in columns), rules)

    late, early = file(2, ("b", "B"), ("a", "A late")), file(1, ("a", None), ("c", "C"))
    made = plan(Joined([late, early]))
    assert [(column.name, column.doc) for column in made.typed] == [("a", "A late"), ("c", "C"), ("b", "B")]


def test_files_are_loaded_only_when_somebody_asks() -> None:
    rules = effective({}, {})
    first = PresentFile("1", (FileColumn("a", "a", SUMMARIES[3]),), rules)
    second = PresentFile("2", (FileColumn("b", "b", SUMMARIES[3]),), rules)
    asked = []

    def load() -> list[PresentFile]:
        asked.append(1)
        return [first]

    present = Present(Joined([first]), load)
    longer = present.with_files([second])
    assert (bool(present), bool(Present.of([])), longer.joined) == (True, False, Joined([first, second]))
    assert asked == []
    assert list(longer.files) == [first, second]
    assert list(longer.files) == [first, second]
    assert asked == [1]
