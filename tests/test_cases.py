"""The shared case suite, through the command line: what a user types and what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import Command

CASES = Path(__file__).parent / "cases"
# They archive, delete or restore a file, which this version cannot do yet.
WAITING = {
    "archive_and_restore",
    "column_leaves_with_its_file",
    "remove_one_of_two",
    "remove_the_last",
    "type_narrows_on_removal",
}
ALL = sorted(path.parent.name for path in CASES.glob("*/case.json"))


def _load(name: str) -> dict[str, Any]:
    return json.loads((CASES / name / "case.json").read_text("utf-8"))


def test_only_removal_is_waited_for() -> None:
    removing = {
        name for name in ALL if any({"archive", "delete", "restore"} & step.keys() for step in _load(name)["steps"])
    }
    assert removing == WAITING


@pytest.mark.parametrize("name", [name for name in ALL if name not in WAITING])
def test_case(name: str, lake: Command) -> None:
    case = _load(name)
    folder = ["--vendor", "cases", "--project", "suite", "--folder", name]
    dataset = f"cases/suite/{name}"
    for step in case["steps"]:
        done = lake("ingest", str(CASES / name / step["upload"]), *folder, "--json")
        (line,) = done.lines
        assert line["status"] == step["status"], line
        assert done.code == (0 if step["status"] in ("ready", "duplicate") else 1)
        if "records" in step and step["status"] == "ready":
            assert line["records"] == step["records"]
            assert line["rows"]["bronze"] == step["records"]
        for word in step.get("reason_has", ()):
            assert word in line["reason"]
        if step["status"] in ("failed", "quarantined"):
            assert line["reason"]
    _check_tables(case, dataset, lake)


def _check_tables(case: dict[str, Any], dataset: str, lake: Command) -> None:
    if case.get("tables") == []:
        for layer in ("bronze", "silver", "gold"):
            assert lake("show", layer, dataset, "--json").code == 1
        return

    def rows(layer: str, *options: str) -> list[Any]:
        done = lake("show", layer, dataset, "--json", *options)
        assert done.code == 0, done.error
        return done.lines

    for layer in ("silver", "gold"):
        (columns,) = lake("schema", layer, dataset, "--json").lines
        if "schema" in case:
            found = [[c["name"], "decimal" if c["type"].startswith("decimal") else c["type"]] for c in columns]
            assert found == case["schema"]
        if "docs" in case:
            assert [c["doc"] for c in columns] == case["docs"]
    for layer in ("bronze", "silver"):
        if layer in case:
            assert rows(layer) == case[layer]
    if "gold" in case:
        assert rows("gold") == case["gold"]
    if "silver_tail" in case:
        assert rows("silver")[-len(case["silver_tail"]) :] == case["silver_tail"]
    if "rescued" in case:
        assert [row[-1] for row in rows("bronze", "--columns", "all")] == case["rescued"]
    for layer, count in case.get("counts", {}).items():
        assert len(rows(layer)) == count
