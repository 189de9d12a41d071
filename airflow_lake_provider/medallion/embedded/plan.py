"""Which columns a dataset's tables have, and of what types, given the files that are present.

A type is joined from the summaries of all present files, never from earlier types, so that it depends on which files
are there and not on the order in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema

from airflow_lake_provider.medallion.embedded.tables import Column, iceberg_type
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


def plan_columns(files: Sequence[PresentFile]) -> Plan:
    """The plan for these files, in upload order.

    Under the contracts ``freeze`` and ``reject_row`` the types are the declared ones, and under ``reject_row`` a column
    that is not declared stays in bronze alone.
    """
    docs: dict[str, str | None] = {}
    summaries: dict[str, ColumnSummary] = {}
    declared: dict[str, set[ColumnType]] = {}
    strict: dict[str, None] = {}
    typing: dict[str, TypingSettings] = {}
    for file in files:
        rules = file.settings.typing
        if rules.contract != "evolve":
            strict.update(dict.fromkeys(rules.types))
        for name, kind in rules.types.items():
            declared.setdefault(name, set()).add(kind)
        for column in file.columns:
            if docs.get(column.name) is None:
                docs[column.name] = column.doc
            if rules.contract == "reject_row" and column.name not in rules.types:
                continue
            typing[column.name] = rules
            known = summaries.get(column.name)
            summaries[column.name] = column.summary if known is None else merge(known, column.summary)
    # Files that declare one column differently take their declarations from each other, whatever their order.
    agreed = {name: next(iter(kinds)) for name, kinds in declared.items() if len(kinds) == 1}
    types = {
        name: agreed[name] if name in strict and name in agreed else choose(summary, typing[name], agreed.get(name))
        for name, summary in summaries.items()
    }
    types.update((name, agreed.get(name, STRING)) for name in strict if name not in types)
    return Plan(
        bronze=tuple(Column(name, STRING, doc) for name, doc in docs.items()),
        typed=tuple(Column(name, kind, docs.get(name)) for name, kind in types.items()),
    )


def valued(files: Sequence[PresentFile]) -> frozenset[str]:
    """The columns in which at least one of the files has a value."""
    return frozenset(column.name for file in files for column in file.columns if column.summary.count)


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
