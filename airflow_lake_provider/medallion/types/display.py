"""Canonical texts of typed values, as users see them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.medallion.types.model import ColumnType

if TYPE_CHECKING:
    import pyarrow as pa


def canonical_values(values: pa.Array | pa.ChunkedArray, column_type: ColumnType) -> list[str | None]:
    """The canonical text of each value of an Arrow array of a column's type, None for null.

    The same text that ``canonical`` gives for the field that the value was read from.
    """
    import pyarrow.compute as pc

    match column_type.name:
        case "string" | "unknown":
            return _texts(values)
        case "double":
            return [None if value is None else _number(Decimal(repr(value))) for value in values.to_pylist()]
        case "decimal":
            return [None if value is None else _number(value) for value in values.to_pylist()]
        case "timestamp" | "timestamptz":
            zone = "+00:00" if column_type.name == "timestamptz" else ""
            microseconds = _microseconds(values)
            return [None if value is None else _timestamp(value) + zone for value in microseconds]
        case _:
            import pyarrow as pa

            return _texts(pc.cast(values, pa.string()))


def _texts(values: Any) -> list[str | None]:
    texts: list[str | None] = values.to_pylist()
    return texts


def _microseconds(values: Any) -> list[int | None]:
    """Microseconds since 1970; through integers, since Python's own conversion of zoned ones needs a time zone
    database."""
    import pyarrow as pa
    import pyarrow.compute as pc

    unit = pa.timestamp("us", tz=values.type.tz)
    numbers: list[int | None] = pc.cast(pc.cast(values, unit), pa.int64()).to_pylist()
    return numbers


_EPOCH = datetime.datetime(1970, 1, 1)


def _timestamp(microseconds: int) -> str:
    text = (_EPOCH + datetime.timedelta(microseconds=microseconds)).isoformat(" ")
    return text.rstrip("0") if "." in text else text


def _number(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
