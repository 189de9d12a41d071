from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.dataset import LAYERS, DatasetName
from airflow_lake_provider.errors import InvalidName


def test_the_names_of_a_dataset() -> None:
    name = DatasetName("Acme", "web-shop", "2026_orders")
    assert str(name) == "acme/web-shop/2026_orders"
    assert name.table_name == "acme__web_shop__2026_orders"
    assert [name.table(layer) for layer in LAYERS] == [
        ("bronze", "acme__web_shop__2026_orders"),
        ("silver", "acme__web_shop__2026_orders"),
        ("gold", "acme__web_shop__2026_orders"),
    ]
    assert name.asset_uri == "lake://gold/acme__web_shop__2026_orders"


def test_parsing_gives_back_what_was_written() -> None:
    name = DatasetName("acme", "shop", "orders")
    assert DatasetName.parse("acme/shop/orders") == name
    assert DatasetName.parse("/ACME/Shop/orders/") == name
    assert DatasetName.parse(str(name)) == name


@pytest.mark.parametrize("text", ["", "a", "a/b", "a/b/c/d", "a//b", "a/ /b", "a\\b\\c"])
def test_what_is_no_dataset(text: str) -> None:
    with pytest.raises(InvalidName):
        DatasetName.parse(text)


@pytest.mark.parametrize(
    "part",
    ["", " ", "-a", "a-", "_a", "a_", "a b", "a.b", "..", "a\n", "ä", "ａ", "a" * 64, "a/b", "a;DROP", "a%", "\u212a"],
)
def test_what_cannot_be_part_of_a_name(part: str) -> None:
    for place in range(3):
        parts = ["a", "b", "c"]
        parts[place] = part
        if part == "\u212a":  # KELVIN SIGN: composed and lowered it is an ordinary k
            assert DatasetName(*parts).table_name.count("k") == 1
            continue
        with pytest.raises(InvalidName, match=f"The {('vendor', 'project', 'folder')[place]} "):
            DatasetName(*parts)


def test_each_part_may_have_63_characters() -> None:
    assert len(DatasetName("a" * 63, "b" * 63, "c" * 63).table_name) == 63 * 3 + 4


def test_a_name_does_not_change() -> None:
    name = DatasetName("a", "b", "c")
    with pytest.raises(dataclasses.FrozenInstanceError):
        name.vendor = "x"  # type: ignore[misc]
    assert name == DatasetName("A", "B", "C")
    assert len({name, DatasetName("A", "B", "C")}) == 1
    assert sorted([DatasetName("b", "a", "a"), DatasetName("a", "b", "b")])[0].vendor == "a"


@given(st.text(), st.text(), st.text())
def test_whatever_is_accepted_can_name_a_table_and_be_parsed(vendor: str, project: str, folder: str) -> None:
    try:
        name = DatasetName(vendor, project, folder)
    except InvalidName:
        return
    assert re.fullmatch(r"[a-z0-9_]+", name.table_name)
    assert DatasetName.parse(str(name)) == name
