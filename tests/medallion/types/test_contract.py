from __future__ import annotations

from typing import Any

import duckdb
import pytest

from airflow_lake_provider.medallion.types import (
    ColumnType,
    Rejected,
    TypingSettings,
    Violation,
    find_rejected,
    find_violations,
    summarize,
    typed_query,
)

ROWS = [
    ("1", "1.50", "2024-01-31", ""),
    ("x", "2.345", "31.01.2024", None),
    ("3", " 4 ", "05.05.2024", " "),
    ("4.0", "", "bad", "more"),
    ("99999999999999999999", None, "2024-02-30", None),
]
DECLARED = {"id": "bigint", "price": "decimal(38,2)", "day": "date"}


class File:
    def __init__(self, **more: Any) -> None:
        self.con = duckdb.connect(config={"threads": 1})
        self.con.execute("CREATE TABLE t (_row_number BIGINT, id VARCHAR, price VARCHAR, day VARCHAR, note VARCHAR)")
        self.con.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", [(n, *row) for n, row in enumerate(ROWS, start=1)])
        types = {name: ColumnType.parse(kind) for name, kind in DECLARED.items()}
        self.settings = TypingSettings(contract="reject_row", types=types, **more)
        self.columns = ["id", "price", "day", "note"]
        self.summaries = summarize(self.run, "t", self.columns, self.settings)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        return self.con.execute(sql).fetchall()

    def violations(self) -> list[Violation]:
        return find_violations(self.run, "t", self.columns, self.settings, self.summaries)

    def rejected(self) -> Rejected:
        return find_rejected(self.run, "t", self.columns, self.settings, self.summaries)

    def kept(self) -> list[tuple[Any, ...]]:
        query = typed_query(
            "t",
            dict(self.settings.types),
            self.settings,
            keep=["_row_number"],
            only_fitting=True,
            undeclared=["note"],
            summaries=self.summaries,
        )
        return self.run(f"SELECT _row_number, id::VARCHAR, price::VARCHAR, day::VARCHAR FROM ({query}) ORDER BY 1")


@pytest.fixture
def file() -> File:
    return File()


def test_violations_name_places_and_counts(file: File) -> None:
    types = file.settings.types
    assert file.violations() == [
        Violation("id", types["id"], 2, 2),
        Violation("price", types["price"], 1, 2),
        Violation("day", types["day"], 3, 2),
        Violation("note", None, 1, 4),
    ]


def test_rejected_rows_are_those_that_are_left_out(file: File) -> None:
    assert file.rejected() == Rejected(3, (2, 4, 5))
    assert file.kept() == [(1, "1", "1.50", "2024-01-31"), (3, "3", "4.00", "2024-05-05")]
    assert find_rejected(file.run, "t", file.columns, file.settings, file.summaries, shown=1) == Rejected(3, (2,))


def test_a_stated_order_admits_dates() -> None:
    file = File(date_order="dmy")
    assert file.violations()[2] == Violation("day", ColumnType("date"), 2, 4)


def test_null_tokens_fit_everything() -> None:
    file = File(null_tokens=frozenset({"x", "2.345", "31.01.2024", "bad", "more", "2024-02-30"}))
    assert [violation.column for violation in file.violations()] == ["id"]
    assert [row[0] for row in file.kept()] == [1, 2, 3, 4]


def test_a_file_that_keeps_its_contract_is_not_read_again(file: File) -> None:
    def never(sql: str) -> list[tuple[Any, ...]]:
        raise AssertionError(sql)

    file.con.execute("DELETE FROM t WHERE _row_number IN (2, 4, 5)")
    summaries = summarize(file.run, "t", ["id", "price"], file.settings)
    assert find_violations(never, "t", ["id", "price"], file.settings, summaries) == []
    assert find_rejected(never, "t", ["id", "price"], file.settings, summaries) == Rejected(0, ())


def test_a_contract_judges_each_value_by_itself() -> None:
    """Another value of the file that decides day and month decides nothing for this one."""
    con = duckdb.connect(config={"threads": 1})
    con.execute(
        "CREATE TABLE t AS SELECT * FROM (VALUES (1, '1.2.2024'), (2, '13.2.2024'), (3, '3.3.2024')) v(_row_number, d)"
    )
    settings = TypingSettings(contract="freeze", types={"d": ColumnType("date")})

    def run(sql: str) -> list[tuple[Any, ...]]:
        return con.execute(sql).fetchall()

    summaries = summarize(run, "t", ["d"], settings)
    assert find_violations(run, "t", ["d"], settings, summaries) == [Violation("d", ColumnType("date"), 2, 1)]


def test_many_columns() -> None:
    con = duckdb.connect(config={"threads": 1})
    names = [f"c{n}" for n in range(130)]
    fields = ", ".join(f"'x' AS {name}" for name in names)
    con.execute(f"CREATE TABLE t AS SELECT 1 AS _row_number, {fields}")
    settings = TypingSettings(contract="freeze", types={name: ColumnType("bigint") for name in names})

    def run(sql: str) -> list[tuple[Any, ...]]:
        return con.execute(sql).fetchall()

    found = find_violations(run, "t", names, settings, summarize(run, "t", names, settings))
    assert [violation.column for violation in found] == names
