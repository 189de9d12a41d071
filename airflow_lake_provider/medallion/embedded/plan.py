"""Which columns a dataset's tables have, and of what types, given the files that are present.

A type is joined from the summaries of all present files, never from earlier types, so that it depends on which files
are there and not on the order in which they came.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.schema import Schema

from airflow_lake_provider.medallion.embedded.layout import Column, iceberg_type
from airflow_lake_provider.medallion.present import Joined
from airflow_lake_provider.medallion.types import STRING, TypingSettings, choose


@dataclass(frozen=True, slots=True)
class Plan:
    """The columns that the tables are to have: ``bronze`` as text, ``typed`` for silver and gold."""

    bronze: tuple[Column, ...]
    typed: tuple[Column, ...]


def plan(joined: Joined) -> Plan:
    """The columns for these files.

    Under the contracts ``freeze`` and ``reject_row`` the types are the declared ones, and under ``reject_row`` a
    column that is not declared stays in bronze alone.
    """
    # Files that declare one column differently take their declarations from each other, whatever their order.
    agreed = {name: next(iter(kinds)) for name, kinds in joined.declared.items() if len(kinds) == 1}
    rules = TypingSettings(date_order=joined.date_order)
    docs = {name: joined.docs[name][1] if name in joined.docs else None for name in joined.columns()}
    types = {
        name: agreed[name]
        if name in joined.strict and name in agreed
        else choose(joined.summaries[name], rules, agreed.get(name))
        for name in docs
        if name in joined.summaries
    }
    types.update((name, agreed.get(name, STRING)) for name in sorted(joined.strict) if name not in types)
    return Plan(
        bronze=tuple(Column(name, STRING, doc) for name, doc in docs.items()),
        typed=tuple(Column(name, kind, docs.get(name)) for name, kind in types.items()),
    )


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
