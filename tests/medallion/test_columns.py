import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.medallion.columns import column_names, positional_names


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (["id", "my/col", "$data", "a.b", "é ü", "_x"], ["id", "my_col", "data", "a_b", "é_ü", "x"]),
        (["Name", "NAME", "name"], ["name", "name_2", "name_3"]),
        (["a", "a", "a_2"], ["a", "a_3", "a_2"]),
        (["a_2", "a", "a", "a"], ["a_2", "a", "a_3", "a_4"]),
        (["a", "a_2", "a_2", "a"], ["a", "a_2", "a_2_2", "a_3"]),
        (["", "x", " "], ["column_1", "x", "column_3"]),
        (["", "Column 1", ""], ["column_1_2", "column_1", "column_3"]),
        (["column_2", "--"], ["column_2", "column_2_2"]),
        (["column_2", "", "column_2_2"], ["column_2", "column_2_3", "column_2_2"]),
        (["\ufeffid", "\u00a0v\u00a0", "\tw\r\n"], ["id", "v", "w"]),
        (["__a__b--c!", "100%", "2019"], ["a_b_c", "100", "2019"]),
        (["e\u0301", "\u00e9"], ["\u00e9", "\u00e9_2"]),
        (["İ"], [unicodedata.normalize("NFC", "İ".lower())]),
        (["हिन्दी", "名前", "٣٤", "²", "Ⅳ"], ["हिन्दी", "名前", "٣٤", "column_4", "column_5"]),
        (["_file_id", "_rescued"], ["file_id", "rescued"]),
        ([], []),
    ],
)
def test_column_names(header: list[str], names: list[str]) -> None:
    assert column_names(header) == names


def test_positional_names() -> None:
    assert positional_names(3) == ["column_1", "column_2", "column_3"]
    assert positional_names(0) == []


@given(st.lists(st.one_of(st.text(max_size=6), st.sampled_from(["", "a", "A", "a_2", "column_1", "column 2", "a_3"]))))
def test_names_are_different_never_empty_and_never_ours(header: list[str]) -> None:
    names = column_names(header)
    assert len(names) == len(header)
    assert len(set(names)) == len(names)
    assert all(name and not name.startswith("_") and not name.endswith("_") for name in names)
    assert all(unicodedata.is_normalized("NFC", name) for name in names)


@given(st.lists(st.sampled_from(["a", "b", "a_2", "a_3", "", "column_2"])))
def test_a_name_that_stands_in_the_header_is_kept_by_its_first_field(header: list[str]) -> None:
    names = column_names(header)
    for text in set(header) - {""}:
        assert names[header.index(text)] == text


def test_many_repeats_take_linear_time() -> None:
    assert column_names(["a"] * 5000)[-1] == "a_5000"
