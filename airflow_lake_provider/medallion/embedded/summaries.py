"""What the values of new files are, and whether the files keep their contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lake_provider.medallion.embedded.bronze import BronzeFile, BronzeWriter, Unit
from airflow_lake_provider.medallion.embedded.parquet import discard, literal, paths_list
from airflow_lake_provider.medallion.engine import FileColumn, FileOutcome
from airflow_lake_provider.medallion.types import (
    ColumnSummary,
    TypingSettings,
    find_rejected,
    find_violations,
    summarize,
    summarize_by_file,
)

_INCOMING = "incoming"
Run = Callable[[str], Sequence[Sequence[Any]]]


def admit(connection: duckdb.DuckDBPyConnection, writer: BronzeWriter) -> dict[str, FileOutcome]:
    """An outcome for each file that the writer has read or refused; files that break their contract leave its units.

    The outcomes of files that go in are ``ready``, with their columns and notes, and without their row counts.
    """
    outcomes = dict(writer.refused)
    for unit in writer.units:
        if unit.table is not None:
            connection.register(_INCOMING, unit.table)
        try:
            for outcome in _unit(connection, unit):
                outcomes[outcome.file_id] = outcome
        finally:
            if unit.table is not None:
                connection.unregister(_INCOMING)
        _leave(unit, {file_id for file_id, outcome in outcomes.items() if outcome.status != "ready"})
    writer.units = [unit for unit in writer.units if unit.files]
    return outcomes


def _leave(unit: Unit, refused: set[str]) -> None:
    """Take the refused files out of a unit."""
    gone = [file.work.file_id for file in unit.files if file.work.file_id in refused]
    if not gone:
        return
    unit.files = [file for file in unit.files if file.work.file_id not in refused]
    if unit.table is not None:
        unit.table = unit.table.filter(pc.invert(pc.is_in(unit.table["_file_id"], value_set=pa.array(gone))))
    else:
        discard(unit.paths)
        unit.paths, unit.footers = [], []


def _unit(connection: duckdb.DuckDBPyConnection, unit: Unit) -> list[FileOutcome]:
    def run(sql: str) -> Sequence[Sequence[Any]]:
        return connection.execute(sql).fetchall()

    groups: list[tuple[TypingSettings, list[BronzeFile]]] = []
    for file in unit.files:
        typing = file.work.settings.typing
        for known, group in groups:
            if known == typing:
                group.append(file)
                break
        else:
            groups.append((typing, [file]))
    outcomes = []
    for typing, files in groups:
        relation = _INCOMING if unit.table is not None else f"read_parquet({paths_list(unit.paths)})"
        if len(groups) > 1:
            ids = ", ".join(literal(file.work.file_id) for file in files)
            relation = f"(SELECT * FROM {relation} WHERE _file_id IN ({ids}))"
        columns = list(dict.fromkeys(name for file in files for name in file.columns))
        if not unit.rows:
            found: dict[str, dict[str, ColumnSummary]] = {}
        elif len(files) == 1:
            found = {files[0].work.file_id: summarize(run, relation, columns, typing)}
        else:
            found = summarize_by_file(run, relation, columns, typing)
        for file in files:
            summaries = found.get(file.work.file_id, {})
            own = tuple(
                FileColumn(name, doc, summaries.get(name, ColumnSummary()))
                for name, doc in zip(file.columns, file.docs, strict=True)
            )
            mine = (
                relation
                if len(files) == 1
                else f"(SELECT * FROM {relation} WHERE _file_id = {literal(file.work.file_id)})"
            )
            outcomes.append(_outcome(run, mine, file, own, typing))
    return outcomes


def _outcome(
    run: Run, relation: str, file: BronzeFile, columns: tuple[FileColumn, ...], typing: TypingSettings
) -> FileOutcome:
    file_id = file.work.file_id
    notes = [doubt.message for doubt in file.doubts]
    if typing.contract == "freeze":
        broken = _breach(run, relation, columns, typing)
        if broken is not None:
            reason = f"{file.work.name} breaks the contract 'freeze': {broken}"
            return FileOutcome(file_id, "failed", reason=reason, notes=notes)
    elif typing.contract == "reject_row":
        rejected = _rejected(run, relation, columns, typing)
        if rejected is not None:
            notes.append(rejected)
    return FileOutcome(file_id, "ready", records=file.records, rescued=file.rescued, notes=notes, columns=columns)


def _breach(run: Run, relation: str, columns: Sequence[FileColumn], typing: TypingSettings) -> str | None:
    """What breaks ``freeze`` first, as the rest of a sentence."""
    undeclared = next((column.name for column in columns if column.name not in typing.types), None)
    if undeclared is not None:
        return f"its column {undeclared!r} is not declared; declare it (setting types), or leave it out of the file."
    summaries = {column.name: column.summary for column in columns}
    violations = find_violations(run, relation, list(summaries), typing, summaries)
    if not violations:
        return None
    first = violations[0]
    values = "1 value does" if first.count == 1 else f"{first.count} values do"
    return (
        f"{values} not fit {first.declared} in column {first.column!r}, the first in record {first.first_row}; "
        "correct the file, or declare another type."
    )


def _rejected(run: Run, relation: str, columns: Sequence[FileColumn], typing: TypingSettings) -> str | None:
    """How many rows ``reject_row`` leaves out of silver, and which, as a sentence."""
    summaries = {column.name: column.summary for column in columns}
    rejected = find_rejected(run, relation, list(summaries), typing, summaries)
    if not rejected.count:
        return None
    first = ", ".join(map(str, rejected.first_rows))
    more = ", …" if rejected.count > len(rejected.first_rows) else ""
    if rejected.count == 1:
        return f"1 record does not fit the declared types and stays in bronze alone (record {first})."
    return f"{rejected.count:,} records do not fit the declared types and stay in bronze alone (records {first}{more})."
