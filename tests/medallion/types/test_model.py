from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.medallion.types import (
    STRING,
    UNKNOWN,
    ColumnSummary,
    ColumnType,
    TypingSettings,
    choose,
    join,
    merge,
    merge_all,
)

counts = st.integers(1, 9)
small = st.integers(0, 40)
numbers = st.builds(
    ColumnSummary,
    count=counts,
    family=st.just("number"),
    plain=st.booleans(),
    fractions=st.booleans(),
    beyond_64_bits=st.booleans(),
    integer_digits=small,
    scale=small,
    significant_digits=small,
).map(lambda s: replace(s, fractions=s.fractions or s.scale > 0))
day_months = st.builds(
    ColumnSummary,
    count=counts,
    family=st.just("day_month"),
    plain=st.booleans(),
    day_first=st.booleans(),
    month_first=st.booleans(),
    day_is_month=st.booleans(),
    separator=st.sampled_from("/.-"),
)
others = st.builds(
    ColumnSummary,
    count=counts,
    family=st.sampled_from(["boolean", "date", "stated_date", "timestamp", "timestamptz", "text"]),
    plain=st.booleans(),
)
empties = st.builds(ColumnSummary, plain=st.booleans())
summaries = st.one_of(numbers, day_months, others, empties)


@given(summaries, summaries, summaries)
def test_merging_is_associative_and_commutative_and_has_an_identity(
    a: ColumnSummary, b: ColumnSummary, c: ColumnSummary
) -> None:
    assert merge(a, merge(b, c)) == merge(merge(a, b), c)
    assert merge(a, b) == merge(b, a)
    assert merge(a, ColumnSummary()) == a


@given(st.lists(summaries, max_size=5), st.randoms())
def test_the_order_of_files_does_not_matter(files: list[ColumnSummary], random: object) -> None:
    shuffled = list(files)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert join(merge_all(files)) == join(merge_all(shuffled)) == join(reduce(merge, shuffled, ColumnSummary()))


@given(summaries)
def test_json_round_trip(summary: ColumnSummary) -> None:
    assert ColumnSummary.from_dict(json.loads(json.dumps(summary.to_dict()))) == summary


def test_json_is_small_and_versioned() -> None:
    assert ColumnSummary().to_dict() == {"v": 1, "count": 0}
    assert ColumnSummary(5, "boolean").to_dict() == {"v": 1, "count": 5, "family": "boolean"}


@pytest.mark.parametrize(
    "data", [{}, {"v": 2, "count": 1}, {"v": 1, "count": 1, "colour": "red"}, {"v": 1, "count": 1, "family": "colour"}]
)
def test_json_of_another_version_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="column summary"):
        ColumnSummary.from_dict(data)


def number(
    integer: int, scale: int = 0, significant: int | None = None, *, fractions: bool = False, beyond: bool = False
) -> ColumnSummary:
    digits = integer + scale if significant is None else significant
    return ColumnSummary(1, "number", True, fractions or scale > 0, beyond, integer, scale, digits)


BIGINT, DOUBLE, DATE = ColumnType("bigint"), ColumnType("double"), ColumnType("date")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], "unknown"),
        ([number(3)], "bigint"),
        ([number(19)], "bigint"),
        ([number(20, beyond=True)], "decimal(38,0)"),
        ([number(3), number(38, beyond=True)], "decimal(38,0)"),
        ([number(3, 2)], "double"),
        ([number(1, fractions=True)], "double"),
        ([number(15), number(0, 1)], "double"),
        ([number(16), number(0, 1)], "decimal(38,1)"),
        ([number(16), number(1, fractions=True)], "decimal(38,0)"),
        ([number(8, 8)], "decimal(38,8)"),
        ([number(8, 8), number(1, 20)], "decimal(38,20)"),
        ([number(18, 20)], "decimal(38,20)"),
        ([number(19, 20)], "string"),
        ([number(19), number(0, 20)], "string"),
        ([number(0, 38, 15)], "double"),
        ([number(0, 38, 16)], "decimal(38,38)"),
        ([number(1), number(0, 38, 15)], "double"),
        ([number(1), number(0, 38, 16)], "string"),
        ([number(3), ColumnSummary(1, "boolean")], "string"),
        ([ColumnSummary(1, "date"), ColumnSummary(1, "timestamp")], "string"),
        ([ColumnSummary(1, "timestamp"), ColumnSummary(1, "timestamptz")], "string"),
        ([ColumnSummary(1, "date"), ColumnSummary(1, "day_month", separator="/")], "string"),
        ([ColumnSummary(1, "date"), ColumnSummary(1, "stated_date")], "date"),
        ([ColumnSummary(), ColumnSummary(1, "timestamptz")], "timestamptz"),
        ([ColumnSummary.text(3, plain=True), ColumnSummary()], "string"),
    ],
)
def test_joins(parts: list[ColumnSummary], expected: str) -> None:
    assert str(join(merge_all(parts))) == expected


def day_month(*, dmy: bool, mdy: bool, same: bool = False, separator: str = "/") -> ColumnSummary:
    return ColumnSummary(1, "day_month", True, day_first=dmy, month_first=mdy, day_is_month=same, separator=separator)


OPEN = day_month(dmy=True, mdy=True)
SAME = day_month(dmy=True, mdy=True, same=True)
DMY = day_month(dmy=True, mdy=False)
MDY = day_month(dmy=False, mdy=True)
STATED = ColumnSummary(1, "stated_date")


@pytest.mark.parametrize(
    ("parts", "stated", "expected", "order"),
    [
        ([OPEN], None, "string", None),
        ([SAME], None, "date", None),
        ([SAME, OPEN], None, "string", None),
        ([OPEN, DMY], None, "date", "dmy"),
        ([OPEN, MDY, SAME], None, "date", "mdy"),
        ([DMY, MDY], None, "string", None),
        ([DMY, day_month(dmy=True, mdy=False, separator=".")], None, "string", None),
        ([OPEN], "dmy", "date", "dmy"),
        ([OPEN], "mdy", "date", "mdy"),
        ([DMY], "mdy", "string", None),
        ([DMY], "dmy", "date", "dmy"),
        ([DMY, MDY], "dmy", "string", None),
        ([STATED, DMY], None, "date", "dmy"),
        ([STATED, OPEN], None, "string", None),
        ([STATED], None, "date", None),
    ],
)
def test_day_and_month(parts: list[ColumnSummary], stated: str | None, expected: str, order: str | None) -> None:
    found = join(merge_all(parts), TypingSettings(date_order=stated))  # type: ignore[arg-type]
    assert (str(found), found.order) == (expected, order)


def test_a_removed_file_takes_its_order_with_it() -> None:
    assert join(merge(OPEN, DMY)) == DATE
    assert join(OPEN) == STRING


def test_types_compare_without_their_order_and_read_with_it() -> None:
    dmy, mdy, either = ColumnType("date", order="dmy"), ColumnType("date", order="mdy"), DATE
    assert dmy == mdy == either
    assert len({dmy, mdy, either}) == 1
    assert not dmy.reads_as(mdy)
    assert dmy.reads_as(either)
    assert either.reads_as(mdy)
    assert not dmy.reads_as(STRING)


@pytest.mark.parametrize(
    ("summary", "declared", "expected"),
    [
        (number(3), "double", "double"),
        (number(16), "double", "bigint"),
        (number(3), "decimal(38,2)", "decimal(38,2)"),
        (number(3, 3), "decimal(38,2)", "double"),
        (number(36, 0, beyond=True), "decimal(38,2)", "decimal(38,2)"),
        (number(37, 0, beyond=True), "decimal(38,2)", "decimal(38,0)"),
        (number(1, fractions=True), "bigint", "bigint"),
        (number(1, 1), "bigint", "double"),
        (number(20, beyond=True), "bigint", "decimal(38,0)"),
        (ColumnSummary(2, "boolean"), "bigint", "boolean"),
        (ColumnSummary(2, "date"), "timestamp", "date"),
        (ColumnSummary(2, "timestamp"), "timestamptz", "timestamp"),
        (ColumnSummary.text(2, plain=True), "double", "string"),
        (number(3), "string", "string"),
        (DMY, "date", "date"),
        (OPEN, "date", "string"),
        (ColumnSummary(), "double", "double"),
    ],
)
def test_declared_types_hold_where_they_lose_nothing(summary: ColumnSummary, declared: str, expected: str) -> None:
    assert str(choose(summary, TypingSettings(), ColumnType.parse(declared))) == expected


def test_a_declared_date_keeps_the_order_that_the_values_decide() -> None:
    assert choose(merge(OPEN, MDY), TypingSettings(), DATE).order == "mdy"


@given(summaries)
def test_an_inferred_type_fits(summary: ColumnSummary) -> None:
    assert summary.fits(join(summary))
    assert summary.fits(STRING)


@given(numbers, numbers)
def test_what_fits_both_is_what_fits_each(a: ColumnSummary, b: ColumnSummary) -> None:
    for kind in ("bigint", "double", "decimal(38,5)", "string", "date"):
        declared = ColumnType.parse(kind)
        assert merge(a, b).fits(declared) == (a.fits(declared) and b.fits(declared))


@pytest.mark.parametrize("text", ["boolean", "bigint", "double", "decimal(38,0)", "decimal(38,38)", "date", "string"])
def test_names_round_trip(text: str) -> None:
    assert str(ColumnType.parse(text)) == text
    assert ColumnType.parse(f" {text.upper()} ") == ColumnType.parse(text)


@pytest.mark.parametrize("text", ["", "int", "decimal", "decimal(10,2)", "decimal(38,39)", "unknown", "decimal(38,)"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected one of"):
        ColumnType.parse(text)


@pytest.mark.parametrize("scale", [-1, 39])
def test_scales_have_bounds(scale: int) -> None:
    with pytest.raises(ValueError, match="0 to 38"):
        ColumnType("decimal", scale)


def test_wrong_types_are_refused() -> None:
    with pytest.raises(ValueError, match="no column type"):
        ColumnType("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no scale"):
        ColumnType("bigint", 2)


def test_names_in_iceberg_and_duckdb() -> None:
    assert [(t.iceberg, t.duckdb) for t in (BIGINT, DOUBLE, STRING, UNKNOWN, ColumnType("decimal", 3))] == [
        ("long", "BIGINT"),
        ("double", "DOUBLE"),
        ("string", "VARCHAR"),
        ("string", "VARCHAR"),
        ("decimal(38, 3)", "DECIMAL(38,3)"),
    ]


def test_text_keeps_no_measures() -> None:
    merged = merge(number(5, 2), ColumnSummary(4, "boolean", plain=False))
    assert merged == ColumnSummary.text(5, plain=False)
    defaults = {f.name: f.default for f in fields(ColumnSummary)}
    assert replace(merged, count=0, family=None, plain=True) == ColumnSummary(**defaults)  # type: ignore[arg-type]
