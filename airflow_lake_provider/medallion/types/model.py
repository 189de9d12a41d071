"""Column types, the mergeable summary of a column's values, and the type that a summary amounts to.

A type is never joined from types. Every file keeps one summary per column; the summaries of the present files are
merged, and the merged summary decides, so that the type depends on which files are there and not on the order in which
they came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

if TYPE_CHECKING:
    from airflow_lake_provider.medallion.types.settings import TypingSettings

TypeName = Literal["boolean", "bigint", "double", "decimal", "date", "timestamp", "timestamptz", "string", "unknown"]
DateOrder = Literal["dmy", "mdy"]
Family = Literal["boolean", "number", "date", "stated_date", "day_month", "timestamp", "timestamptz", "text"]

TYPE_NAMES: Final[tuple[TypeName, ...]] = get_args(TypeName)
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)

DECIMAL_PRECISION: Final = 38
"""Digits of every decimal; the most that Iceberg, DuckDB and Spark can hold."""

DOUBLE_DIGITS: Final = 15
"""Significant decimal digits that a 64-bit float always gives back."""

_DECIMAL = re.compile(r"decimal\(38,([0-9]|[1-2][0-9]|3[0-8])\)")
_ICEBERG: Final[Mapping[str, str]] = {"bigint": "long", "unknown": "string"}
_DUCKDB: Final[Mapping[str, str]] = {"string": "VARCHAR", "unknown": "VARCHAR"}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column.

    ``scale`` belongs to ``decimal``, which always has 38 digits. ``order`` belongs to ``date``: how the texts of a
    d/m/y column are to be read, None where they are ISO dates or every day equals its month. It is no part of the type,
    so types compare equal without it; ``reads_as`` compares it too. ``unknown`` is a column without values: text in a
    table, and never in the way of a later type.
    """

    name: TypeName
    scale: int = 0
    order: DateOrder | None = None

    def __post_init__(self) -> None:
        if self.name not in TYPE_NAMES:
            raise ValueError(f"There is no column type {self.name!r}; expected one of {', '.join(TYPE_NAMES)}.")
        if self.name != "decimal" and self.scale:
            raise ValueError(f"The column type {self.name!r} has no scale.")
        if not 0 <= self.scale <= DECIMAL_PRECISION:
            raise ValueError(f"The scale of a decimal must be 0 to {DECIMAL_PRECISION}, not {self.scale}.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ColumnType):
            return NotImplemented
        return (self.name, self.scale) == (other.name, other.scale)

    def __hash__(self) -> int:
        return hash((self.name, self.scale))

    @classmethod
    def parse(cls, text: str) -> ColumnType:
        """Read ``bigint``, ``decimal(38,2)``, …; letter case and spaces do not matter. Raises ValueError."""
        plain = "".join(text.split()).lower()
        if match := _DECIMAL.fullmatch(plain):
            return cls("decimal", int(match[1]))
        for name in TYPE_NAMES:
            if name == plain and name not in ("decimal", "unknown"):
                return cls(name)
        raise ValueError(
            "expected one of boolean, bigint, double, decimal(38,<scale 0 to 38>), date, timestamp, timestamptz, string"
        )

    @property
    def iceberg(self) -> str:
        """The name of the type in Iceberg."""
        return f"decimal(38, {self.scale})" if self.name == "decimal" else _ICEBERG.get(self.name, self.name)

    @property
    def duckdb(self) -> str:
        """The name of the type in DuckDB."""
        return f"DECIMAL(38,{self.scale})" if self.name == "decimal" else _DUCKDB.get(self.name, self.name.upper())

    def reads_as(self, other: ColumnType) -> bool:
        """Whether texts that are right under both types give the same values, so that stored ones need no rewrite.

        Two d/m/y columns with opposite orders do not; a column whose every day equals its month reads the same under
        both.
        """
        return self == other and (self.order == other.order or None in (self.order, other.order))

    def __str__(self) -> str:
        return f"decimal(38,{self.scale})" if self.name == "decimal" else self.name


STRING: Final = ColumnType("string")
UNKNOWN: Final = ColumnType("unknown")

_SUMMARY_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """What the non-null values of one column are, in one file or in several merged.

    ``count`` values. ``family`` is the one shape that all of them have: None without values, ``text`` where a value has
    no shape or two values have different ones. ``day_month`` are d/m/y dates, ``stated_date`` those of a file for which
    a user has stated the order; they go with dates of either kind. ``plain`` says that every field is already trimmed
    and none is a null token, so that only the empty field means null.

    Of numbers: ``fractions`` where one is written with a fraction, ``beyond_64_bits`` where an integer part is,
    ``integer_digits`` before the decimal sign at most (a lone ``0`` counts none), ``scale`` behind it at most (trailing
    zeros dropped), ``significant_digits`` from the first non-zero one to the last at most.

    Of d/m/y dates: ``day_first`` and ``month_first`` where every value is a real date in that order, ``day_is_month``
    where the two are equal in every value, ``separator`` the one that all use.
    """

    count: int = 0
    family: Family | None = None
    plain: bool = True
    fractions: bool = False
    beyond_64_bits: bool = False
    integer_digits: int = 0
    scale: int = 0
    significant_digits: int = 0
    day_first: bool = True
    month_first: bool = True
    day_is_month: bool = True
    separator: str = ""

    @classmethod
    def text(cls, count: int, *, plain: bool) -> ColumnSummary:
        """The summary of ``count`` values that no type but text can hold; any merge with it is text again."""
        return cls(count=count, family="text", plain=plain)

    def to_dict(self) -> dict[str, Any]:
        """A small JSON-serializable dict; what has its default is left out."""
        changed = {
            f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default or f.name == "count"
        }
        return {"v": _SUMMARY_VERSION, **changed}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ColumnSummary:
        """The inverse of ``to_dict``; raises ValueError for a version or a key that this code does not know."""
        if data.get("v") != _SUMMARY_VERSION:
            raise ValueError(
                f"The column summary has version {data.get('v')!r}, expected {_SUMMARY_VERSION}: read the file again."
            )
        values = dict(data)
        del values["v"]
        if unknown := values.keys() - _SUMMARY_KEYS:
            raise ValueError(f"The column summary has unknown keys: {', '.join(sorted(unknown))}.")
        if values.get("family") is not None and values["family"] not in FAMILIES:
            raise ValueError("The column summary has an unknown family.")
        return cls(**values)

    def fits(self, column_type: ColumnType, settings: TypingSettings | None = None) -> bool:
        """Whether every value can be stored as ``column_type`` without loss.

        ``settings`` matter for d/m/y dates, which fit ``date`` where the values or ``date_order`` decide the order.
        """
        match column_type.name:
            case "string":
                return True
            case "unknown":
                return self.family is None
        if self.family is None:
            return True
        match column_type.name:
            case "bigint":
                return self.family == "number" and self.scale == 0 and not self.beyond_64_bits
            case "double":
                return self.family == "number" and self.significant_digits <= DOUBLE_DIGITS
            case "decimal":
                return (
                    self.family == "number"
                    and self.scale <= column_type.scale
                    and self.integer_digits + column_type.scale <= DECIMAL_PRECISION
                )
            case "date":
                return self.family in ("date", "stated_date") or (
                    self.family == "day_month" and _day_month_type(self, settings).name == "date"
                )
            case other:
                return self.family == other


_SUMMARY_KEYS: Final = frozenset(field.name for field in fields(ColumnSummary))


def merge(a: ColumnSummary, b: ColumnSummary) -> ColumnSummary:
    """The summary of the values of both; associative and commutative, with ``ColumnSummary()`` as its identity."""
    count = a.count + b.count
    plain = a.plain and b.plain
    if a.family is None or b.family is None:
        return replace(b if a.family is None else a, plain=plain)
    for stated, other in ((a, b), (b, a)):
        if stated.family == "stated_date" and other.family in ("date", "day_month"):
            return replace(other, count=count, plain=plain)
    if a.family != b.family or a.family == "text" or a.separator != b.separator:
        return ColumnSummary.text(count, plain=plain)
    return ColumnSummary(
        count=count,
        family=a.family,
        plain=plain,
        fractions=a.fractions or b.fractions,
        beyond_64_bits=a.beyond_64_bits or b.beyond_64_bits,
        integer_digits=max(a.integer_digits, b.integer_digits),
        scale=max(a.scale, b.scale),
        significant_digits=max(a.significant_digits, b.significant_digits),
        day_first=a.day_first and b.day_first,
        month_first=a.month_first and b.month_first,
        day_is_month=a.day_is_month and b.day_is_month,
        separator=a.separator,
    )


def merge_all(summaries: Iterable[ColumnSummary]) -> ColumnSummary:
    """The summary of the values of all of them, in whatever order."""
    return reduce(merge, summaries, ColumnSummary())


def join(summary: ColumnSummary, settings: TypingSettings | None = None) -> ColumnType:
    """The narrowest type that holds every summarized value without loss.

    ``settings`` give the order of d/m/y dates that decide nothing themselves.
    """
    match summary.family:
        case None:
            return UNKNOWN
        case "number":
            return _number_type(summary)
        case "day_month":
            return _day_month_type(summary, settings)
        case "stated_date":
            return ColumnType("date")
        case "text":
            return STRING
        case family:
            return ColumnType(family)


def choose(
    summary: ColumnSummary, settings: TypingSettings | None = None, declared: ColumnType | None = None
) -> ColumnType:
    """The declared type where every value fits it, else the inferred one, with the order of d/m/y dates filled in."""
    if declared is None or not summary.fits(declared, settings):
        return join(summary, settings)
    if declared.name == "date" and summary.family == "day_month":
        return _day_month_type(summary, settings)
    return declared


def _number_type(summary: ColumnSummary) -> ColumnType:
    if not summary.fractions:
        return ColumnType("decimal", 0) if summary.beyond_64_bits else ColumnType("bigint")
    if summary.significant_digits <= DOUBLE_DIGITS:
        return ColumnType("double")
    if summary.integer_digits + summary.scale <= DECIMAL_PRECISION:
        return ColumnType("decimal", summary.scale)
    return STRING


def _day_month_type(summary: ColumnSummary, settings: TypingSettings | None) -> ColumnType:
    # A value with both parts up to 12 is real in either order, so a value that is real in one order alone decides.
    real: dict[DateOrder, bool] = {"dmy": summary.day_first, "mdy": summary.month_first}
    if wanted := settings.date_order if settings else None:
        return ColumnType("date", order=wanted) if real[wanted] else STRING
    if summary.day_is_month:
        return ColumnType("date")
    if real["dmy"] != real["mdy"]:
        return ColumnType("date", order="dmy" if real["dmy"] else "mdy")
    return STRING
