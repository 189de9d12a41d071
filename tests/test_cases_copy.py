"""The suite of cases is shared between projects; the copy in this one must be the same to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
COPY = HERE / "cases"
ORIGINAL = HERE.parents[1] / "shared" / "cases"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(not ORIGINAL.is_dir(), reason="the original is not beside this clone")
def test_the_copy_is_the_original() -> None:
    copy, original = files(COPY), files(ORIGINAL)
    assert sorted(copy) == sorted(original)
    assert [name for name in copy if copy[name] != original[name]] == []


def test_there_are_cases() -> None:
    assert len(list(COPY.glob("*/case.json"))) >= 30
