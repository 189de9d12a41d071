from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.errors import SettingsError
from airflow_lake_provider.medallion.dataset_settings import (
    KEYS,
    EffectiveSettings,
    check,
    effective,
    parse_assignments,
    value_of,
)
from airflow_lake_provider.medallion.dialect import ReadOptions
from airflow_lake_provider.medallion.types import ColumnType, TypingSettings, row_hash


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("delimiter=;", {"delimiter": ";"}),
        ("delimiter=tab", {"delimiter": "\t"}),
        (r"delimiter=\t", {"delimiter": "\t"}),
        (r"delimiter=\x01", {"delimiter": "\x01"}),
        (r"delimiter=\u001f", {"delimiter": "\x1f"}),
        ("delimiter=||", {"delimiter": "||"}),
        ("delimiter==", {"delimiter": "="}),
        ("delimiter= ", {"delimiter": " "}),
        ("delimiter=none", {"delimiter": ""}),
        ("delimiter=", {"delimiter": None}),
        ("quote=none", {"quote": ""}),
        ("quote='", {"quote": "'"}),
        ("escape=backslash", {"escape": "\\"}),
        ("escape=\\", {"escape": "\\"}),
        ("encoding=Latin-1", {"encoding": "iso8859-1"}),
        ("header=no", {"header": False}),
        ("header=TRUE", {"header": True}),
        ("preamble=3", {"preamble": 3}),
        ("null_tokens=NA, n/a,-", {"null_tokens": ["-", "NA", "n/a"]}),
        ('null-tokens=["a,b", " x "]', {"null_tokens": ["a,b", "x"]}),
        ("null_tokens=", {"null_tokens": None}),
        ("decimal_comma=yes", {"decimal_comma": True}),
        ("date_order=DMY", {"date_order": "dmy"}),
        ("contract=freeze", {"contract": "freeze"}),
        ("types.amount=decimal(38, 2)", {"types": {"amount": "decimal(38,2)"}}),
        ("types.Unit price=DOUBLE", {"types": {"unit_price": "double"}}),
        ('types={"b": "date", "a": "bigint"}', {"types": {"a": "bigint", "b": "date"}}),
        ("types=a=bigint, b=decimal(38,2)", {"types": {"a": "bigint", "b": "decimal(38,2)"}}),
        ("types=", {"types": None}),
    ],
)
def test_assignments(assignment: str, expected: dict[str, Any]) -> None:
    assert parse_assignments([assignment]) == expected


def test_single_columns_are_declared_beside_the_others() -> None:
    current = {"types": {"a": "bigint", "b": "date"}}
    assert parse_assignments(["types.c=string", "types.A="], current) == {"types": {"b": "date", "c": "string"}}
    assert parse_assignments(["types.a=", "types.b="], current) == {"types": None}
    assert parse_assignments(["types=x=date", "types.y=date"], current) == {"types": {"x": "date", "y": "date"}}
    assert parse_assignments(["types=", "types.y=date"], current) == {"types": {"y": "date"}}
    assert current == {"types": {"a": "bigint", "b": "date"}}


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("delimiter", "KEY=VALUE"),
        ("delimeter=;", "did you mean 'delimiter'"),
        ("colour=red", "there are delimiter, encoding"),
        ("delimiter=123456789", "delimiter cannot be '123456789'.*at most 8"),
        ("delimiter=\n", "delimiter.*without a line end"),
        ("quote=ab", "quote cannot be 'ab'.*one character"),
        ("quote=a", "quote cannot be 'a'.*no letter"),
        ("encoding=klingon", "encoding cannot be 'klingon'.*utf-8"),
        ("encoding=rot13", "encoding cannot be 'rot13'"),
        ("header=maybe", "header cannot be 'maybe'.*yes or no"),
        ("preamble=-1", "preamble cannot be '-1'.*whole number"),
        ("preamble=1.5", "preamble.*whole number"),
        ("null_tokens=[1, 2]", "null_tokens"),
        ("null_tokens=[oops", "null_tokens.*JSON"),
        ("decimal_comma=,", "decimal_comma cannot be ','.*yes or no"),
        ("date_order=ymd", "date_order cannot be 'ymd'.*dmy or mdy"),
        ("contract=strict", "contract cannot be 'strict'.*evolve or freeze or reject_row"),
        ("types.a=int", "types cannot be.*column 'a'.*expected one of boolean, bigint"),
        ("types=a", "types cannot be 'a'.*columns with their types"),
        ('types={"a": 1}', "types"),
        ('types={"a": "date", "A": "date"}', "'a' has two"),
        ("types=[1]", "types"),
    ],
)
def test_mistakes_name_the_key_the_value_and_what_is_expected(assignment: str, words: str) -> None:
    with pytest.raises(SettingsError, match=f"(?s){words}") as raised:
        parse_assignments([assignment])
    assert str(raised.value).endswith((".", "?"))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [None, 1.5, ["x", 1], {"a": 1}, "\x00"])
def test_json_of_the_wrong_kind_is_refused(key: str, value: Any) -> None:
    if (key, value) in (("null_tokens", "\x00"),):
        return
    with pytest.raises(SettingsError, match=key):
        value_of(key, value)


@pytest.mark.parametrize("contract", ["freeze", "reject_row"])
def test_a_strict_contract_needs_declared_types(contract: str) -> None:
    with pytest.raises(SettingsError, match=f"'{contract}' without types"):
        check({"contract": contract})
    assert check({"contract": contract, "types": {"a": "date"}})["contract"] == contract
    with pytest.raises(SettingsError, match="without types"):
        effective({"contract": contract}, {})


@pytest.mark.parametrize(
    "settings", [{"delimiter": '"'}, {"delimiter": "'", "quote": "'"}, {"delimiter": "|\\", "escape": "\\"}]
)
def test_characters_that_cannot_be_told_apart_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="setting delimiter cannot be"):
        check(settings)


def test_a_delimiter_may_be_a_quote_where_there_are_no_quotes() -> None:
    assert check({"delimiter": '"', "quote": ""}) == {"delimiter": '"', "quote": ""}


EVERYTHING: dict[str, Any] = {
    "delimiter": ";",
    "encoding": "cp1252",
    "header": False,
    "quote": "'",
    "escape": "\\",
    "preamble": 2,
    "null_tokens": ["NA"],
    "decimal_comma": True,
    "date_order": "dmy",
    "contract": "reject_row",
    "types": {"amount": "decimal(38,2)"},
}


def test_everything_is_effective() -> None:
    assert EVERYTHING.keys() == KEYS.keys()
    found = effective(json.loads(json.dumps(EVERYTHING)), {})
    assert found == EffectiveSettings(
        ReadOptions(encoding="cp1252", delimiter=";", quote="'", escape="\\", header=False, preamble=2),
        TypingSettings(
            null_tokens=frozenset({"NA"}),
            decimal_comma=True,
            date_order="dmy",
            contract="reject_row",
            types={"amount": ColumnType("decimal", 2)},
        ),
    )
    assert (found.contract, dict(found.types)) == ("reject_row", {"amount": ColumnType("decimal", 2)})


def test_nothing_is_decided_without_settings() -> None:
    assert effective({}, {}) == EffectiveSettings(ReadOptions(), TypingSettings())


def test_overrides_go_before_the_dataset() -> None:
    found = effective(EVERYTHING, {"delimiter": "", "decimal_comma": False, "types": {"Day": "date"}, "header": None})
    assert found.read_options.delimiter == ""
    assert found.read_options.quote == "'"
    assert not found.typing.decimal_comma
    assert dict(found.types) == {"amount": ColumnType("decimal", 2), "day": ColumnType("date")}


def test_an_order_stated_for_a_file_is_not_that_of_the_dataset() -> None:
    typing = effective({"date_order": "dmy"}, {"date_order": "mdy"}).typing
    assert (typing.date_order, typing.file_date_order, typing.order) == ("dmy", "mdy", "mdy")


def test_wrong_overrides_are_refused() -> None:
    with pytest.raises(SettingsError, match="did you mean 'encoding'"):
        effective({}, {"encodin": "utf-8"})


def test_settings_that_are_equal_are_equal() -> None:
    """Files are grouped by it."""
    assert effective(EVERYTHING, {}) == effective(EVERYTHING, {})
    assert effective(EVERYTHING, {}) != effective(EVERYTHING, {"types": {"x": "date"}})


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "delimiter": st.sampled_from([",", ";", "tab", r"\x02"]),
            "encoding": st.sampled_from(["utf-8", "UTF8", "cp1252"]),
            "header": st.booleans(),
            "preamble": st.integers(0, 50),
            "null_tokens": st.lists(st.text(max_size=4), max_size=4),
            "types": st.dictionaries(
                st.sampled_from(["a", "b", "my/col"]), st.sampled_from(["date", "DECIMAL(38, 4)", "string"])
            ),
        },
    )
)
def test_checked_settings_stay_as_they_are(settings: dict[str, Any]) -> None:
    once = check(settings)
    assert check(json.loads(json.dumps(once))) == once
    assert effective(once, {}) == effective(settings, {})


DOCS = Path(__file__).parents[2] / "docs"


def test_every_key_is_documented() -> None:
    text = (DOCS / "dataset-settings.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(KEYS)


def test_the_documented_hashes_are_right() -> None:
    text = (DOCS / "types.md").read_text(encoding="utf-8")
    assert str(row_hash({})) in text
    assert str(row_hash({"id": "1", "name": "a"})) in text
