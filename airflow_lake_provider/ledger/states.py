"""The states of a file, and the one table of transitions that everything else is checked against and drawn from.

``python -m airflow_lake_provider.ledger.states`` prints ``docs/file-states.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

Status = Literal[
    "uploaded",
    "duplicate",
    "processing",
    "ready",
    "failing",
    "failed",
    "quarantined",
    "archiving",
    "archived",
    "deleting",
    "deleted",
]
Actor = Literal["user", "worker", "scheduler"]
Removal = Literal["archiving", "deleting"]

STATUSES: Final[tuple[Status, ...]] = get_args(Status)
ACTORS: Final[tuple[Actor, ...]] = get_args(Actor)

#: States in which the bytes of a file count as present in its dataset; the partial unique index covers these.
COUNTED: Final[frozenset[Status]] = frozenset({"uploaded", "processing", "ready"})
#: States in which rows of the file are to be taken out of the tables.
REMOVALS: Final[frozenset[Status]] = frozenset({"archiving", "deleting", "failing"})
#: States that nobody is working on and that nothing will leave by itself (a duplicate may still be waiting, though).
RESTING: Final[frozenset[Status]] = frozenset({"duplicate", "ready", "failed", "quarantined", "archived", "deleted"})

MEANINGS: Final[dict[Status, str]] = {
    "uploaded": "The bytes are in raw storage and the file waits for a worker.",
    "duplicate": "Another file of the dataset has the same bytes. While that one is not yet `ready`, this one waits "
    "and takes over if the other fails or is removed; afterwards it is final.",
    "processing": "A worker holds the dataset's lease and reads the file.",
    "ready": "All records are in bronze, silver and gold.",
    "failing": "It failed, but rows may be in a table: they are taken out like those of a removal.",
    "failed": "It could not be read, the reason says why and where. None of its rows are in any table.",
    "quarantined": "It is not a delimited text file at all. Nothing of it was read into a table.",
    "archiving": "Its rows are being taken out; the raw file will be kept.",
    "archived": "Its rows are gone and the raw file is kept: it can be restored.",
    "deleting": "Its rows and its raw file are being taken out.",
    "deleted": "Its rows and its raw file are gone. Only this record of it remains.",
}


@dataclass(frozen=True, slots=True)
class Transition:
    """One allowed step of a file from ``source`` (None: it did not exist) to ``target``, and who may take it."""

    name: str
    source: Status | None
    target: Status
    actors: frozenset[Actor]
    meaning: str


_USER: Final[frozenset[Actor]] = frozenset({"user"})
_WORKER: Final[frozenset[Actor]] = frozenset({"worker"})
_BACK: Final[frozenset[Actor]] = frozenset({"worker", "scheduler"})
_ANY: Final[frozenset[Actor]] = frozenset(ACTORS)
_ARCHIVABLE: Final[tuple[Status, ...]] = ("uploaded", "ready", "failed", "quarantined", "duplicate")
_DELETABLE: Final[tuple[Status, ...]] = (*_ARCHIVABLE, "archived")


def _table() -> Iterator[Transition]:
    yield Transition("upload", None, "uploaded", _USER, "A new file.")
    yield Transition("upload", None, "duplicate", _USER, "A new file whose bytes the dataset already has.")
    yield Transition("claim", "uploaded", "processing", _WORKER, "A worker leases the dataset and takes the file.")
    yield Transition("ready", "processing", "ready", _WORKER, "All its rows are committed.")
    yield Transition("fail", "processing", "failed", _WORKER, "It cannot be read, and no row of it is in a table.")
    yield Transition("quarantine", "processing", "quarantined", _WORKER, "It is not a delimited text file.")
    yield Transition(
        "failing", "processing", "failing", _BACK, "It failed, or its job died too often, and rows may be in a table."
    )
    yield Transition("hand back", "processing", "uploaded", _BACK, "The worker stopped, or its lease expired.")
    yield Transition("cleaned", "failing", "failed", _WORKER, "No row of it is in a table any more.")
    yield Transition("retry", "failed", "uploaded", _USER, "Read it again, with other overrides perhaps.")
    yield Transition("retry", "quarantined", "uploaded", _USER, "Read it again, with other overrides perhaps.")
    yield Transition("re-read", "ready", "uploaded", _USER, "Read it again with other settings.")
    yield Transition("restore", "archived", "uploaded", _USER, "Read the kept raw file again.")
    yield Transition(
        "take over", "duplicate", "uploaded", _ANY, "The file with the same bytes left, so this one is read instead."
    )
    for source in _ARCHIVABLE:
        yield Transition("archive", source, "archiving", _USER, "Take its rows out and keep the raw file.")
    for source in _DELETABLE:
        yield Transition("delete", source, "deleting", _USER, "Take its rows and its raw file out.")
    yield Transition("archived", "archiving", "archived", _WORKER, "No row of it is in a table any more.")
    yield Transition("deleted", "deleting", "deleted", _WORKER, "No row of it is in a table, and the raw file is gone.")
    for source in _ARCHIVABLE:
        yield Transition("refuse", "archiving", source, _WORKER, "Something forbids the removal; the reason says what.")
    for source in _DELETABLE:
        yield Transition("refuse", "deleting", source, _WORKER, "Something forbids the removal; the reason says what.")
    yield Transition(
        "step back", "uploaded", "duplicate", _WORKER, "The file with the same bytes came back from a refused removal."
    )


TRANSITIONS: Final[tuple[Transition, ...]] = tuple(_table())
_ALLOWED: Final[dict[tuple[Status | None, Status], frozenset[Actor]]] = {
    (step.source, step.target): step.actors for step in TRANSITIONS
}


def allowed(source: Status | None, target: Status, actor: Actor) -> bool:
    """Whether ``actor`` may take a file from ``source`` (None: a new one) to ``target``."""
    return actor in _ALLOWED.get((source, target), frozenset())


def targets(source: Status | None, actor: Actor | None = None) -> tuple[Status, ...]:
    """The states that a file in ``source`` may go to, for one actor or for any."""
    return tuple(
        step.target for step in TRANSITIONS if step.source == source and (actor is None or actor in step.actors)
    )


def mermaid(*, refusals: bool = False) -> str:
    """The state diagram as mermaid text: the main one, or the way back from a removal that was refused."""
    lines = ["stateDiagram-v2"]
    shown = (step for step in TRANSITIONS if (step.name in ("refuse", "step back")) == refusals)
    lines += [f"    {step.source or '[*]'} --> {step.target}: {step.name}" for step in shown]
    if not refusals:
        lines.append("    deleted --> [*]")
    return "\n".join(lines)


def page() -> str:
    """The text of ``docs/file-states.md``."""
    lines = [
        "# States of a file",
        "",
        "<!-- Written by `python -m airflow_lake_provider.ledger.states`; change the table there, not this page. -->",
        "",
        "Each step is one guarded `UPDATE` of the file and one row in `lake.file_events`, in one transaction, and a",
        "notification on the channel `lake`. A step that is not in the table is refused.",
        "",
        "```mermaid",
        mermaid(),
        "```",
        "",
        "| state | meaning |",
        "|---|---|",
        *(f"| `{status}` | {MEANINGS[status]} |" for status in STATUSES),
        "",
        "A file in `processing` or `failing` can be asked to be archived or deleted too: the wish is noted, the worker",
        "sees it with its next heartbeat, and the removal follows in the transaction in which the file leaves that",
        "state.",
        "The same holds for deleting a file that is `archiving`.",
        "",
        "## A removal that is refused",
        "",
        "What forbids a removal (a tag on a snapshot, `gc.enabled=false`) is checked before a row is touched. The file",
        "then goes back to the state it came from. Other trouble never ends a removal: it is tried again with growing",
        "delay.",
        "",
        "```mermaid",
        mermaid(refusals=True),
        "```",
        "",
        "## Every step",
        "",
        "| from | to | step | who | meaning |",
        "|---|---|---|---|---|",
    ]
    for step in TRANSITIONS:
        who = ", ".join(actor for actor in ACTORS if actor in step.actors)
        source = f"`{step.source}`" if step.source else "–"
        lines.append(f"| {source} | `{step.target}` | {step.name} | {who} | {step.meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
