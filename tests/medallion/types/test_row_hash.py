from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.medallion.types import row_hash, row_hash_sql
from airflow_lake_provider.medallion.types.dialects import DUCKDB

# No NUL and no lone surrogates: neither can be in a file that was read.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)


def test_known_values() -> None:
    """These are in every table that was ever written."""
    assert row_hash({}) == -3162216497309240828
    assert row_hash({"id": "1", "name": "a"}) == 6818690468101534670
    assert row_hash({"name": "Müller", "ü": "€"}) == -1916906503167320098


@given(st.lists(st.dictionaries(texts.filter(bool), st.one_of(st.none(), texts), max_size=6), min_size=1, max_size=5))
def test_sql_and_python_agree(rows: list[dict[str, str | None]]) -> None:
    names = sorted({name for row in rows for name in row})
    columns = [f"c{n}" for n in range(len(names))]
    expression = row_hash_sql(list(zip(names, columns, strict=True))[::-1])
    with duckdb.connect() as con:
        literals = ", ".join(
            "(" + ", ".join("NULL" if (t := row.get(n)) is None else DUCKDB.literal(t) for n in ["", *names]) + ")"
            for row in rows
        )
        found = con.execute(f"SELECT {expression} FROM (VALUES {literals}) v({', '.join(['x', *columns])})").fetchall()
    assert [value for (value,) in found] == [row_hash(row) for row in rows]


@given(st.dictionaries(texts, texts, max_size=5), texts)
def test_a_new_column_changes_nothing(row: dict[str, str], name: str) -> None:
    if name not in row:
        assert row_hash({**row, name: None}) == row_hash(row)


def test_names_matter() -> None:
    assert row_hash({"a": "1", "b": None}) != row_hash({"a": None, "b": "1"})


@pytest.mark.parametrize("count", [1, 5000])
def test_any_number_of_columns(count: int) -> None:
    row = {f"column {n}": f"value {n}" for n in range(count)}
    expression = row_hash_sql([(name, f"'{value}'") for name, value in row.items()])
    with duckdb.connect() as con:
        assert con.execute(f"SELECT {expression}").fetchall() == [(row_hash(row),)]
