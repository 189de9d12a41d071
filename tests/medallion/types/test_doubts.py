from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest

from airflow_lake_provider.medallion.dataset_settings import effective, parse_assignments
from airflow_lake_provider.medallion.types import AlmostTyped, ColumnType, TypingSettings, almost_typed, join, summarize


def look(settings: TypingSettings | None = None, **columns: list[str | None]) -> list[AlmostTyped]:
    with duckdb.connect(config={"threads": 1}) as con:
        con.register("t", pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()}))

        def run(sql: str) -> list[tuple[Any, ...]]:
            return con.execute(sql).fetchall()

        return almost_typed(run, "t", list(columns), settings or TypingSettings())


INTEGERS: list[str | None] = [str(n) for n in range(100)]


def test_a_few_texts_that_look_like_nulls() -> None:
    values = [*INTEGERS, "0.5", "NA", "NA", " NA ", "-", None, ""]
    assert look(amount=values) == [
        AlmostTyped("amount", ColumnType("double"), (("NA", 3), ("-", 1)), "null_tokens=-,NA", 4)
    ]


def test_null_tokens_that_are_set_already_stay() -> None:
    found = look(TypingSettings(null_tokens=frozenset({"?"})), a=[*INTEGERS, "?", "n/a"])
    assert [(doubt.setting, doubt.exceptions) for doubt in found] == [("null_tokens=?,n/a", (("n/a", 1),))]


def test_exceptions_that_are_values_have_no_setting() -> None:
    assert look(code=[*INTEGERS, "007", "1e3"]) == [
        AlmostTyped("code", ColumnType("bigint"), (("007", 1), ("1e3", 1)), None, 2)
    ]


def test_only_the_most_frequent_exceptions_are_shown() -> None:
    found = look(a=[*INTEGERS, *["x"] * 3, "b", "c", "d", "e", "f"])
    assert found == [
        AlmostTyped("a", ColumnType("bigint"), (("x", 3), ("b", 1), ("c", 1), ("d", 1), ("e", 1)), None, 8)
    ]


@pytest.mark.parametrize(
    ("values", "kind", "setting"),
    [
        (["1234,5", "7", "0,25"], "double", "decimal_comma=true"),
        (["1/2/2024", "3/4/2024"], "date", "date_order=dmy or date_order=mdy"),
    ],
)
def test_a_setting_alone(values: list[str | None], kind: str, setting: str) -> None:
    assert look(a=values) == [AlmostTyped("a", ColumnType(kind), (), setting)]  # type: ignore[arg-type]


def test_a_decimal_comma_that_was_set_by_mistake() -> None:
    assert look(TypingSettings(decimal_comma=True), a=["1.5", "2.5"])[0].setting == "decimal_comma=false"


@pytest.mark.parametrize(
    "values",
    [["a", "b", "c"], INTEGERS, [*INTEGERS, *["x"] * 20], ["1/13/2024", "13/1/2024"], [], [None, ""], ["true", "1"]],
)
def test_nothing_to_say(values: list[str | None]) -> None:
    assert look(a=values) == []


def test_columns_keep_their_order() -> None:
    rows = len(INTEGERS) + 1
    found = look(z=[*INTEGERS, "?"], plain=["x"] * rows, b=["1,5"] * rows, a=["1.1.2024", *["1.2.2024"] * (rows - 1)])
    assert [doubt.column for doubt in found] == ["z", "b", "a"]


def test_the_settings_do_what_they_promise() -> None:
    columns: dict[str, list[str | None]] = {
        "a": [*INTEGERS, "x,y", "[n]", 'q"'],
        "b": ["1,5"] * 103,
        "c": ["1-2-2024"] * 103,
    }
    with duckdb.connect(config={"threads": 1}) as con:
        con.register("t", pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()}))

        def run(sql: str) -> list[tuple[Any, ...]]:
            return con.execute(sql).fetchall()

        doubts = almost_typed(run, "t", list(columns))
        assert len(doubts) == 3
        for doubt in doubts:
            assert doubt.setting is not None
            for setting in doubt.setting.split(" or "):
                typing = effective(parse_assignments([setting]), {}).typing
                assert join(summarize(run, "t", [doubt.column], typing)[doubt.column], typing) == doubt.type
