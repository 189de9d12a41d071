"""A file's columns as the ledger keeps them: what a later join of types needs, without the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_lake_provider.medallion.engine import FileColumn
from airflow_lake_provider.medallion.types import ColumnSummary


def to_summary(columns: Sequence[FileColumn]) -> dict[str, Any]:
    """JSON for the columns of a file, in their order."""
    return {
        "columns": [{"name": column.name, "doc": column.doc, "values": column.summary.to_dict()} for column in columns]
    }


def from_summary(summary: Mapping[str, Any]) -> tuple[FileColumn, ...]:
    """The inverse of ``to_summary``; raises ValueError for a summary of another version."""
    return tuple(
        FileColumn(entry["name"], entry["doc"], ColumnSummary.from_dict(entry["values"]))
        for entry in summary.get("columns", ())
    )
