"""Lossless types: what a column's texts are, what they amount to over several files, and the SQL that makes them
values."""

from __future__ import annotations

from airflow_lake_provider.medallion.types.contract import Rejected, Violation, find_rejected, find_violations
from airflow_lake_provider.medallion.types.display import canonical_values
from airflow_lake_provider.medallion.types.doubts import AlmostTyped, almost_typed
from airflow_lake_provider.medallion.types.measure import read_summaries, summarize, summarize_by_file, summary_query
from airflow_lake_provider.medallion.types.model import (
    DECIMAL_PRECISION,
    STRING,
    UNKNOWN,
    ColumnSummary,
    ColumnType,
    choose,
    join,
    merge,
    merge_all,
)
from airflow_lake_provider.medallion.types.query import typed_query
from airflow_lake_provider.medallion.types.row_hash import row_hash, row_hash_sql
from airflow_lake_provider.medallion.types.settings import DEFAULT_TYPING, TypingSettings
from airflow_lake_provider.medallion.types.sql import canonical, fits, null_trim, typed

__all__ = [
    "DECIMAL_PRECISION",
    "DEFAULT_TYPING",
    "STRING",
    "UNKNOWN",
    "AlmostTyped",
    "ColumnSummary",
    "ColumnType",
    "Rejected",
    "TypingSettings",
    "Violation",
    "almost_typed",
    "canonical",
    "canonical_values",
    "choose",
    "find_rejected",
    "find_violations",
    "fits",
    "join",
    "merge",
    "merge_all",
    "null_trim",
    "read_summaries",
    "row_hash",
    "row_hash_sql",
    "summarize",
    "summarize_by_file",
    "summary_query",
    "typed",
    "typed_query",
]
