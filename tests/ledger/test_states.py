from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_lake_provider.ledger import states
from airflow_lake_provider.ledger.states import COUNTED, MEANINGS, REMOVALS, RESTING, STATUSES, TRANSITIONS, Status

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_drawn_from_the_table() -> None:
    page = (DOCS / "file-states.md").read_text(encoding="utf-8")
    assert page == states.page(), "run: python -m airflow_lake_provider.ledger.states > docs/file-states.md"


def test_the_drawings_show_every_step_once() -> None:
    drawn = re.findall(r"^ {4}(\S+) --> (\S+): ", states.mermaid() + "\n" + states.mermaid(refusals=True), re.M)
    table = [(step.source or "[*]", step.target) for step in TRANSITIONS]
    assert sorted(drawn) == sorted(table)


def test_no_step_is_listed_twice() -> None:
    steps = [(step.source, step.target) for step in TRANSITIONS]
    assert len(set(steps)) == len(steps)


def test_every_state_has_a_meaning_and_can_be_reached() -> None:
    assert set(MEANINGS) == set(STATUSES)
    reached: set[Status] = set()
    ahead: list[Status] = [step.target for step in TRANSITIONS if step.source is None]
    while ahead:
        status = ahead.pop()
        if status not in reached:
            reached.add(status)
            ahead += states.targets(status)
    assert reached == set(STATUSES)


def test_only_deleted_is_the_end() -> None:
    assert [status for status in STATUSES if not states.targets(status)] == ["deleted"]


def test_states_are_worked_on_or_rest_but_not_both() -> None:
    assert RESTING | REMOVALS | {"uploaded", "processing"} == set(STATUSES)
    assert not RESTING & REMOVALS
    assert {"uploaded", "processing", "ready"} == COUNTED


@pytest.mark.parametrize("source", [status for status in STATUSES if status in REMOVALS])
def test_a_removal_never_ends_in_failed_and_only_a_failing_file_does(source: Status) -> None:
    assert ("failed" in [step.target for step in TRANSITIONS if step.source == source and step.name != "refuse"]) == (
        source == "failing"
    )


def test_users_can_remove_whatever_rests() -> None:
    for status in RESTING - {"deleted"}:
        assert states.allowed(status, "deleting", "user")
    for status in RESTING - {"deleted", "archived"}:
        assert states.allowed(status, "archiving", "user")
