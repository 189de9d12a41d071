from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.errors import InvalidName
from airflow_lake_provider.raw import clean_file_name

ORDINARY = [
    "orders.csv",
    "Größe & Maße (2026).csv",
    "50% off #1? yes+no.csv",
    'it\'s "quoted".csv',
    "%2e%2e%2f.csv",
    "注文.csv",
    "नमस्ते.csv",
    "👩‍👩‍👧.csv",
    ".csv",
    "...",
    " a ",
    "a?versionId=b.csv",
    "[*].csv",
    "e\u0301.csv",
    "a" * 255,
    "é" * 127,
]


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_names_are_kept_as_they_are(name: str) -> None:
    assert clean_file_name(name) == name


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "must not be empty"),
        ("  ", "must not be empty"),
        (".", "stand for folders"),
        ("..", "stand for folders"),
        ("../a.csv", "a name alone"),
        ("/etc/passwd", "a name alone"),
        ("a/b.csv", "a name alone"),
        ("a\\b.csv", "a name alone"),
        ("a\0.csv", "character 2 is the control character U+0000"),
        ("ab\n.csv", "character 3 is the control character U+000A"),
        ("\x7f", "character 1 is the control character U+007F"),
        ("\x9b", "character 1 is the control character U+009B"),
        ("a\u2028b", "character 2 is the control character U+2028"),
        ("a\udcff.csv", "character 2 cannot be written as UTF-8"),
        ("a" * 256, "it has 256 bytes"),
        ("é" * 128, "it has 256 bytes"),
    ],
)
def test_what_could_not_be_stored_under_its_name_is_refused(name: str, fault: str) -> None:
    with pytest.raises(InvalidName) as caught:
        clean_file_name(name)
    message = str(caught.value)
    assert fault in message
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 700


@given(st.text())
def test_what_is_accepted_is_one_name_of_a_file_system(name: str) -> None:
    try:
        accepted = clean_file_name(name)
    except InvalidName:
        return
    assert accepted == name
    assert "/" not in accepted
    assert "\0" not in accepted
    assert accepted not in ("", ".", "..")
    assert len(accepted.encode()) <= 255
