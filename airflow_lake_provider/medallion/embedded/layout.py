"""How the tables of the three layers are laid out: properties, ``_`` columns, and the Iceberg type of each value."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from airflow_lake_provider.dataset import Layer
from airflow_lake_provider.medallion.types import DECIMAL_PRECISION, ColumnType

PROPERTIES = {
    "format-version": "2",
    "commit.retry.num-retries": "0",
    # The default, truncate(16), hides whether a data file holds one file's rows alone.
    "write.metadata.metrics.column._file_id": "full",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    # Some hundred data files: to merge them takes tens of milliseconds, and each is merged once.
    "commit.manifest.target-size-bytes": "65536",
    "commit.manifest.min-count-to-merge": "20",
    "write.parquet.compression-codec": "zstd",
}

# `_row_number` is laid out in gold too and dropped at once: its field id stays taken, so that a column added to
# silver and to gold in the same order has the same id in both, and a data file of the one can be a data file of the
# other.
SYSTEM_FIELDS: dict[Layer, tuple[NestedField, ...]] = {
    "bronze": (
        NestedField(1, "_file_id", StringType(), required=False),
        NestedField(2, "_source_file", StringType(), required=False),
        NestedField(3, "_ingested_at", TimestamptzType(), required=False),
        NestedField(4, "_row_number", LongType(), required=False),
        NestedField(5, "_rescued", ListType(6, StringType(), element_required=False), required=False),
    ),
    "silver": (
        NestedField(1, "_file_id", StringType(), required=False),
        NestedField(2, "_row_number", LongType(), required=False),
        NestedField(3, "_row_hash", LongType(), required=False),
    ),
    "gold": (
        NestedField(1, "_file_id", StringType(), required=False),
        NestedField(2, "_row_number", LongType(), required=False),
        NestedField(3, "_row_hash", LongType(), required=False),
    ),
}
SYSTEM_COLUMNS: dict[Layer, tuple[str, ...]] = {
    "bronze": ("_file_id", "_source_file", "_ingested_at", "_row_number", "_rescued"),
    "silver": ("_file_id", "_row_number", "_row_hash"),
    "gold": ("_file_id", "_row_hash"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A data column of a table: its name, its type, and the original header text as its doc."""

    name: str
    type: ColumnType
    doc: str | None = None


def iceberg_type(column_type: ColumnType) -> IcebergType:
    """The Iceberg type that holds values of ``column_type``; a column without values is text."""
    match column_type.name:
        case "boolean":
            return BooleanType()
        case "bigint":
            return LongType()
        case "double":
            return DoubleType()
        case "decimal":
            return DecimalType(DECIMAL_PRECISION, column_type.scale)
        case "date":
            return DateType()
        case "timestamp":
            return TimestampType()
        case "timestamptz":
            return TimestamptzType()
        case _:
            return StringType()


def column_type(field_type: IcebergType) -> ColumnType:
    """The inverse of ``iceberg_type`` for the types of data columns."""
    match field_type:
        case BooleanType():
            return ColumnType("boolean")
        case LongType():
            return ColumnType("bigint")
        case DoubleType():
            return ColumnType("double")
        case DecimalType():
            return ColumnType("decimal", field_type.scale)
        case DateType():
            return ColumnType("date")
        case TimestampType():
            return ColumnType("timestamp")
        case TimestamptzType():
            return ColumnType("timestamptz")
        case _:
            return ColumnType("string")


def data_columns(schema: Schema) -> list[NestedField]:
    """The fields that came from files, in the table's order."""
    return [field for field in schema.fields if not field.name.startswith("_")]
