"""Which columns a dataset's tables have, and of what types, given the files that are present.

A type is joined from the summaries of all present files, never from earlier types, so that it depends on which files
are there and not on the order in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema

from airflow_lake_provider.medallion.embedded.layout import Column, iceberg_type
from airflow_lake_provider.medallion.engine import PresentFile
from airflow_lake_provider.medallion.types import (
    STRING,
    ColumnSummary,
    ColumnType,
    TypingSettings,
    choose,
    merge,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The columns that the tables are to have: ``bronze`` as text, ``typed`` for silver and gold."""

    bronze: tuple[Column, ...]
    typed: tuple[Column, ...]


class Joined:
    """What is known of each column over some files, in upload order; more files can be added behind them."""

    def __init__(self, files: Sequence[PresentFile] = ()) -> None:
        self.docs: dict[str, str | None] = {}
        self.summaries: dict[str, ColumnSummary] = {}
        self.declared: dict[str, set[ColumnType]] = {}
        self.strict: dict[str, None] = {}
        self.typing: dict[str, TypingSettings] = {}
        self.valued: set[str] = set()
        self.add(files)

    def copy(self) -> Joined:
        """The same, to be added to on its own."""
        other = Joined()
        other.docs = dict(self.docs)
        other.summaries = dict(self.summaries)
        other.declared = {name: set(kinds) for name, kinds in self.declared.items()}
        other.strict = dict(self.strict)
        other.typing = dict(self.typing)
        other.valued = set(self.valued)
        return other

    def add(self, files: Sequence[PresentFile]) -> None:
        """Add files that come behind those added so far."""
        for file in files:
            rules = file.settings.typing
            if rules.contract != "evolve":
                self.strict.update(dict.fromkeys(rules.types))
            for name, kind in rules.types.items():
                self.declared.setdefault(name, set()).add(kind)
            for column in file.columns:
                name = column.name
                if column.summary.count:
                    self.valued.add(name)
                if self.docs.get(name) is None:
                    self.docs[name] = column.doc
                if rules.contract == "reject_row" and name not in rules.types:
                    continue
                self.typing[name] = rules
                known = self.summaries.get(name)
                self.summaries[name] = column.summary if known is None else merge(known, column.summary)

    def plan(self) -> Plan:
        """The columns for these files.

        Under the contracts ``freeze`` and ``reject_row`` the types are the declared ones, and under ``reject_row`` a
        column that is not declared stays in bronze alone.
        """
        # Files that declare one column differently take their declarations from each other, whatever their order.
        agreed = {name: next(iter(kinds)) for name, kinds in self.declared.items() if len(kinds) == 1}
        types = {
            name: agreed[name]
            if name in self.strict and name in agreed
            else choose(summary, self.typing[name], agreed.get(name))
            for name, summary in self.summaries.items()
        }
        types.update((name, agreed.get(name, STRING)) for name in self.strict if name not in types)
        return Plan(
            bronze=tuple(Column(name, STRING, doc) for name, doc in self.docs.items()),
            typed=tuple(Column(name, kind, self.docs.get(name)) for name, kind in types.items()),
        )


def join_files(before: Sequence[PresentFile], after: Sequence[PresentFile]) -> tuple[Joined, Joined]:
    """The columns of both, in upload order; ``after`` mostly is ``before`` with more behind it."""
    joined = Joined(before)
    if list(after[: len(before)]) != list(before):
        return joined, Joined(after)
    longer = joined.copy()
    longer.add(after[len(before) :])
    return joined, longer


def moved(current: Schema | None, before: Plan, after: Plan, held: frozenset[str]) -> bool:
    """Whether rows that a table holds mean something else under the new plan, so that it has to be computed anew.

    ``held`` names the columns in which those rows have a value; ``before`` is the plan by which they were computed.
    """
    if current is None:
        return False
    wanted = {column.name: column.type for column in after.typed}
    former = {column.name: column.type for column in before.typed}
    for field in current.fields:
        kind = wanted.get(field.name)
        if field.name not in held or kind is None:
            continue
        if iceberg_type(kind) != field.field_type or not kind.reads_as(former.get(field.name, kind)):
            return True
    return False
