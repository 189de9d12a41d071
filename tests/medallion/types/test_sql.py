from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_lake_provider.medallion.types import (
    ColumnSummary,
    ColumnType,
    TypingSettings,
    canonical,
    canonical_values,
    choose,
    fits,
    join,
    measure,
    merge_all,
    null_trim,
    read_summaries,
    row_hash,
    summarize,
    summarize_by_file,
    summary_query,
    typed_query,
)
from tests.medallion.types import reference
from tests.medallion.types.reference import Rules
from tests.medallion.types.strategies import EDGES, any_text, column, field

RULES = [
    Rules(),
    Rules(null_tokens=frozenset({"NA", "-", "0"})),
    Rules(decimal_comma=True),
    Rules(date_order="dmy"),
    Rules(date_order="mdy", null_tokens=frozenset({"NA"})),
    Rules(file_date_order="mdy"),
    Rules(file_date_order="dmy", date_order="mdy", decimal_comma=True),
]
rules_of = st.sampled_from(RULES)
DECLARABLE = [
    *("boolean", "bigint", "double", "decimal(38,0)", "decimal(38,2)", "decimal(38,38)"),
    *("date", "timestamp", "timestamptz", "string"),
]


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


class Table:
    """Columns of text in DuckDB."""

    def __init__(self, con: duckdb.DuckDBPyConnection, columns: Mapping[str, Sequence[str | None]]) -> None:
        length = max(map(len, columns.values()))
        data = {
            name: pa.array([*values, *[None] * (length - len(values))], pa.string()) for name, values in columns.items()
        }
        self.con = con
        con.register("fields", pa.table({**data, "_row_number": pa.array(range(1, length + 1), pa.int64())}))

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        return self.con.execute(sql).fetchall()

    def one(self, expression: str) -> list[Any]:
        return [row[0] for row in self.run(f"SELECT {expression} FROM fields ORDER BY _row_number")]


def settings_of(rules: Rules, **more: Any) -> TypingSettings:
    return TypingSettings(
        null_tokens=rules.null_tokens,
        decimal_comma=rules.decimal_comma,
        date_order=rules.date_order,  # type: ignore[arg-type]
        file_date_order=rules.file_date_order,  # type: ignore[arg-type]
        **more,
    )


def expected_summary(fields: Sequence[str | None], rules: Rules) -> ColumnSummary:
    return ColumnSummary(**reference.summary(fields, rules))


@pytest.mark.parametrize("rules", RULES)
def test_every_edge_alone(con: duckdb.DuckDBPyConnection, rules: Rules) -> None:
    table = Table(con, {"v": EDGES, "_file_id": [f"{n:04d}" for n in range(len(EDGES))]})
    found = summarize_by_file(table.run, "fields", ["v"], settings_of(rules))
    assert {EDGES[int(file)]: own["v"] for file, own in found.items()} == {
        text: expected_summary([text], rules) for text in EDGES
    }


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("kind", DECLARABLE)
def test_what_fits_alone(con: duckdb.DuckDBPyConnection, rules: Rules, kind: str) -> None:
    table = Table(con, {"v": EDGES})
    settings = settings_of(rules)
    values = table.one(null_trim("v", settings))
    assert values == [reference.trim(text, rules) for text in EDGES]
    condition = f"v IS NULL OR {fits('v', ColumnType.parse(kind), settings)}"
    found = table.one(f"(SELECT {condition} FROM (SELECT {null_trim('fields.v', settings)} AS v))")
    assert dict(zip(EDGES, found, strict=True)) == {
        text: value is None or reference.fits(reference.look(value, rules), kind, rules)
        for text, value in zip(EDGES, values, strict=True)
    }


@given(columns=st.lists(column, min_size=1, max_size=6), rules=rules_of)
@example(columns=[["1", " 2", None, ""], ["2024-01-01"], [], [None]], rules=Rules())
@example(columns=[["1", "2.50", "-3"], ["007"], ["NA", "1"], ["5"]], rules=RULES[1])
@example(columns=[["5", "0", "7"], ["1.5", "-", "2"], ["true", "x\ufeff"]], rules=RULES[1])
@example(columns=[["2024-03-04", "1/2/2024"], ["1/2/2024", "3.4.2024"], ["31/1/2024"]], rules=RULES[5])
def test_summaries(con: duckdb.DuckDBPyConnection, columns: list[list[str | None]], rules: Rules) -> None:
    named = {f"column {n}": values for n, values in enumerate(columns)}
    table = Table(con, named)
    length = max(map(len, columns))
    settings = settings_of(rules)
    expected = {
        name: expected_summary([*values, *[None] * (length - len(values))], rules) for name, values in named.items()
    }
    assert read_summaries(table.run(summary_query("fields", list(named), settings)), list(named), settings) == expected
    assert summarize(table.run, "fields", list(named), settings) == expected
    with pytest.MonkeyPatch.context() as patch:
        # A sample of one row: whatever follows it is a surprise.
        patch.setattr(measure, "_SAMPLE_ROWS", (1, 1))
        assert summarize(table.run, "fields", list(named), settings) == expected


@given(files=st.lists(st.lists(st.tuples(field(any_text), field(any_text)), max_size=4), max_size=4), rules=rules_of)
def test_summaries_by_file(
    con: duckdb.DuckDBPyConnection, files: list[list[tuple[str | None, str | None]]], rules: Rules
) -> None:
    rows = [(f"f{n}", *row) for n, own in enumerate(files) for row in own]
    if not rows:
        return
    table = Table(con, dict(zip(("_file_id", "a", "b"), map(list, zip(*rows, strict=True)), strict=True)))
    found = summarize_by_file(table.run, "fields", ["a", "b"], settings_of(rules))
    for n, own in enumerate(files):
        empty = {"a": ColumnSummary(), "b": ColumnSummary()}
        assert found.get(f"f{n}", empty) == {
            name: expected_summary([row[i] for row in own], rules) for i, name in enumerate(("a", "b"))
        }


@given(columns=st.lists(column, min_size=1, max_size=5), rules=rules_of)
@example(columns=[["1", "-0.5", "9" * 38, "0." + "9" * 38], ["0." + "0" * 37 + "1", "0.5"], ["1" * 20]], rules=Rules())
@example(columns=[["1.2.2024", "13.2.2024", " 5.5.2005 "], ["5/5/2024"], ["2024-01-01T00:00Z"]], rules=Rules())
@example(columns=[["2024-03-04", "1/2/2024"], ["1/2/2024", "3.4.2024"], ["1/31/2024"]], rules=RULES[5])
def test_typed_values_and_hashes(con: duckdb.DuckDBPyConnection, columns: list[list[str | None]], rules: Rules) -> None:
    named = {f"column {n}": values for n, values in enumerate(columns)}
    table = Table(con, named)
    length = max(map(len, columns))
    settings = settings_of(rules)
    summaries = summarize(table.run, "fields", list(named), settings)
    types = {name: join(summary, settings) for name, summary in summaries.items()}
    texts: dict[str, list[str | None]] = {}
    for name, fields in named.items():
        trimmed = [reference.trim(text, rules) for text in [*fields, *[None] * (length - len(fields))]]
        values = [reference.look(text, rules) if text is not None else None for text in trimmed]
        kind, order = reference.column_type([value for value in values if value is not None], rules)
        assert str(types[name]) == kind
        if types[name].order is not None:
            assert types[name].order == order
        texts[name] = [None if value is None else reference.canonical(value, kind, order) for value in values]
    hashes = [row_hash({name: values[n] for name, values in texts.items()}) for n in range(length)]
    for known in (None, summaries):
        query = typed_query("fields", types, settings, keep=["_row_number"], summaries=known)
        result = con.execute(f"SELECT * FROM ({query}) ORDER BY _row_number").to_arrow_table()
        assert {name: canonical_values(result[name], types[name]) for name in named} == texts
        assert result["_row_hash"].to_pylist() == hashes
        for name, column_type in types.items():
            value = null_trim(f'"{name}"', settings)
            inner = canonical("v", column_type, settings, known[name] if known else None)
            assert table.one(f"(SELECT {inner} FROM (SELECT {value} AS v))") == texts[name]


@given(values=st.lists(field(any_text), min_size=1, max_size=8), rules=rules_of, kind=st.sampled_from(DECLARABLE))
def test_declared_types_value_by_value(
    con: duckdb.DuckDBPyConnection, values: list[str | None], rules: Rules, kind: str
) -> None:
    declared = ColumnType.parse(kind)
    settings = settings_of(rules, contract="reject_row", types={"v": declared})
    Table(con, {"v": values})
    trimmed = [reference.trim(text, rules) for text in values]
    fitting = [text is None or reference.fits(reference.look(text, rules), kind, rules) for text in trimmed]
    query = typed_query("fields", {"v": declared}, settings, keep=["_row_number"], only_fitting=True)
    result = con.execute(f"SELECT * FROM ({query}) ORDER BY _row_number").to_arrow_table()
    assert result["_row_number"].to_pylist() == [n for n, fine in enumerate(fitting, start=1) if fine]
    order = rules.date_order
    assert canonical_values(result["v"], declared) == [
        None if text is None else reference.canonical(reference.look(text, rules), kind, order)
        for text, fine in zip(trimmed, fitting, strict=True)
        if fine
    ]


@given(columns=st.lists(column, min_size=1, max_size=4), rules=rules_of, kind=st.sampled_from(DECLARABLE))
def test_a_declared_type_holds_where_every_value_fits(
    con: duckdb.DuckDBPyConnection, columns: list[list[str | None]], rules: Rules, kind: str
) -> None:
    rules = replace(rules, file_date_order=None)
    settings = settings_of(rules)
    declared = ColumnType.parse(kind)
    for fields in columns:
        if not fields:
            continue
        table = Table(con, {"v": fields})
        summary = summarize(table.run, "fields", ["v"], settings)["v"]
        chosen = choose(summary, settings, declared)
        texts = [text for text in (reference.trim(f, rules) for f in fields) if text is not None]
        values = [reference.look(text, rules) for text in texts]
        joined, order = reference.column_type(values, rules)
        if kind == "date" and joined == "date":
            expected = "date"
        elif values and any(value.kind != values[0].kind for value in values):
            # Two shapes never share a type but text, whatever is declared.
            expected = kind if kind == "string" else joined
        else:
            expected = kind if all(reference.fits(value, kind, rules) for value in values) else joined
            if kind == "date" and joined == "string":
                expected = "string"
        assert str(chosen) == (expected if values else kind)
        result = con.execute(
            typed_query("(SELECT v FROM fields ORDER BY _row_number)", {"v": chosen}, settings)
        ).to_arrow_table()
        assert [text for text in canonical_values(result["v"], chosen) if text is not None] == [
            reference.canonical(value, str(chosen), chosen.order or order) for value in values
        ]


@given(parts=st.lists(column, min_size=1, max_size=4), rules=rules_of)
def test_merged_summaries_are_those_of_all_values(
    con: duckdb.DuckDBPyConnection, parts: list[list[str | None]], rules: Rules
) -> None:
    settings = settings_of(rules)
    everything = [text for part in parts for text in part]
    if not everything:
        return
    summaries = [
        summarize(Table(con, {"v": part}).run, "fields", ["v"], settings)["v"] if part else ColumnSummary()
        for part in parts
    ]
    assert merge_all(summaries) == summarize(Table(con, {"v": everything}).run, "fields", ["v"], settings)["v"]
    assert merge_all(reversed(summaries)) == merge_all(summaries)


@given(fields=column, rules=rules_of)
def test_nothing_is_lost(con: duckdb.DuckDBPyConnection, fields: list[str | None], rules: Rules) -> None:
    """Formatting the typed value gives back the trimmed text, up to the freedoms that the documentation names."""
    if not fields:
        return
    settings = settings_of(rules)
    table = Table(con, {"v": fields})
    kind = join(summarize(table.run, "fields", ["v"], settings)["v"], settings)
    result = con.execute(
        typed_query("(SELECT v FROM fields ORDER BY _row_number)", {"v": kind}, settings)
    ).to_arrow_table()
    for text, shown in zip(
        (reference.trim(f, rules) for f in fields), canonical_values(result["v"], kind), strict=True
    ):
        if text is None or shown is None:
            assert text is shown is None
            continue
        match kind.name:
            case "string":
                assert shown == text
            case "boolean":
                assert shown == text.lower()
            case "bigint" | "double" | "decimal":
                assert shown == without_zeros(text.replace(",", ".") if rules.decimal_comma else text)
            case "date":
                numbers = sorted(int(part) for part in shown.split("-"))
                assert numbers == sorted(int(part) for part in text.replace("/", "-").replace(".", "-").split("-"))
            case "timestamp":
                assert shown == without_zeros(text.replace("T", " ") + (":00" if len(text) == 16 else ""))
            case _:
                assert reference.look(text, rules).canonical == shown


def without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_instants_do_not_depend_on_the_zone_of_the_session(zone: str) -> None:
    fields = ["2026-01-02T03:04Z", "2026-01-02 05:04:05.250+0200", "9999-12-31T23:59:59Z", "0001-01-01 00:00:00-01:00"]
    kind = ColumnType("timestamptz")
    with duckdb.connect(config={"threads": 1}) as own:
        own.execute(f"SET TimeZone = '{zone}'")
        table = Table(own, {"v": fields})
        query = typed_query("fields", {"v": kind}, keep=["_row_number"])
        result = own.execute(f"SELECT * FROM ({query}) ORDER BY _row_number").to_arrow_table()
        assert canonical_values(result["v"], kind) == [
            "2026-01-02 03:04:00+00:00",
            "2026-01-02 03:04:05.25+00:00",
            "9999-12-31 23:59:59+00:00",
            "0001-01-01 01:00:00+00:00",
        ]
        assert table.one(canonical("v", kind)) == canonical_values(result["v"], kind)


def test_very_wide_tables(con: duckdb.DuckDBPyConnection) -> None:
    cycle = ["7", " 1.50", "true", "13.2.2024", "2024-01-01T00:00Z", "text", None]
    names = [f"a column with a long name {n}" for n in range(700)]
    table = Table(con, {name: [cycle[n % len(cycle)]] for n, name in enumerate(names)})
    summaries = summarize(table.run, "fields", names)
    types = {name: join(summary) for name, summary in summaries.items()}
    assert [str(kind) for kind in types.values()][:7] == [
        *("bigint", "double", "boolean", "date", "timestamptz", "string", "unknown")
    ]
    result = con.execute(typed_query("fields", types, summaries=summaries)).to_arrow_table()
    texts = {name: canonical_values(result[name], kind)[0] for name, kind in types.items()}
    assert list(texts.values())[:7] == [*("7", "1.5", "true", "2024-02-13", "2024-01-01 00:00:00+00:00", "text", None)]
    assert result["_row_hash"].to_pylist() == [row_hash(texts)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1e-26, "0.00000000000000000000000001"),
        (123456789012345.0, "123456789012345"),
        (-0.1, "-0.1"),
        (100.0, "100"),
        (1e22, "10000000000000000000000"),
        (99999999999999.9, "99999999999999.9"),
        (None, None),
    ],
)
def test_doubles_are_shown_without_exponent(value: float | None, shown: str | None) -> None:
    assert canonical_values(pa.array([value], pa.float64()), ColumnType("double")) == [shown]
    assert canonical_values(pa.chunked_array([[value], []], pa.float64()), ColumnType("double")) == [shown]


def test_only_rows_without_columns_have_one_hash(con: duckdb.DuckDBPyConnection) -> None:
    Table(con, {"v": ["1", "2"]})
    rows = con.execute(typed_query("fields", {}, keep=["_row_number"])).fetchall()
    assert rows == [(1, row_hash({})), (2, row_hash({}))]
