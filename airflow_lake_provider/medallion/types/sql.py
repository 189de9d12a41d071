"""SQL for values: from a field's text to null, to a typed value, and to canonical text.

Every function takes and gives SQL expressions. ``value`` is always a text that ``null_trim`` has made. Only a text that
matches a pattern is ever cast, since engines disagree on what else they would accept; where that is not known from a
summary, CASE holds the cast back.
"""

from __future__ import annotations

from airflow_lake_provider.medallion.types.dialects import DUCKDB, SqlDialect
from airflow_lake_provider.medallion.types.model import (
    DECIMAL_PRECISION,
    DOUBLE_DIGITS,
    ColumnSummary,
    ColumnType,
    DateOrder,
    Family,
)
from airflow_lake_provider.medallion.types.patterns import (
    BOOLEAN,
    DATE,
    DAY_IS_MONTH,
    DAY_MONTH,
    DAY_OR_MONTH_FIRST,
    TIMESTAMP,
    TIMESTAMPTZ,
    negative_zero,
    number,
)
from airflow_lake_provider.medallion.types.settings import DEFAULT_TYPING, TypingSettings


def null_trim(
    field: str,
    settings: TypingSettings = DEFAULT_TYPING,
    *,
    plain: bool = False,
    guarded: bool = True,
    dialect: SqlDialect = DUCKDB,
) -> str:
    """The trimmed text of a field, NULL where it is blank or one of the null tokens.

    ``plain`` says that the column's summary is plain, which saves looking at every field. ``guarded`` is for few
    columns with many rows: a longer expression that takes less time per field.
    """
    if plain:
        return f"nullif({field}, '')"
    trimmed = dialect.trim(field, guarded=guarded)
    for null in ("", *sorted(settings.null_tokens)):
        trimmed = f"nullif({trimmed}, {dialect.literal(null)})"
    return trimmed


def in_family(
    value: str, family: Family, settings: TypingSettings = DEFAULT_TYPING, dialect: SqlDialect = DUCKDB
) -> str:
    """Whether a value has the shape of a family; safe on every text."""
    match family:
        case "boolean":
            return dialect.matches(value, BOOLEAN)
        case "number":
            sign = decimal_sign(settings)
            # Only what begins with a minus sign sorts before '.' here, so few values meet the second pattern.
            no_zero = f"({value} >= '.' OR NOT {dialect.matches(value, negative_zero(sign))})"
            return f"({dialect.matches(value, number(sign))} AND {no_zero})"
        case "date":
            return dialect.matches(value, DATE)
        case "day_month":
            return dialect.matches(value, DAY_OR_MONTH_FIRST)
        case "stated_date":
            return dialect.matches(value, DAY_MONTH[settings.file_date_order]) if settings.file_date_order else "false"
        case "timestamp":
            return dialect.matches(value, TIMESTAMP)
        case "timestamptz":
            minutes = f"({_minutes(value, 12)} - {_offset_minutes(value)})"
            real = (
                f"CASE WHEN substr({value}, 1, 10) = '0001-01-01' THEN {minutes} >= 0 "
                f"WHEN substr({value}, 1, 10) = '9999-12-31' THEN {minutes} < 1440 ELSE true END"
            )
            return f"CASE WHEN {dialect.matches(value, TIMESTAMPTZ)} THEN {real} ELSE false END"
        case "text":
            return "true"


def decimal_sign(settings: TypingSettings) -> str:
    """The character between integer part and fraction."""
    return "," if settings.decimal_comma else "."


def typed(
    value: str,
    column_type: ColumnType,
    settings: TypingSettings = DEFAULT_TYPING,
    summary: ColumnSummary | None = None,
    dialect: SqlDialect = DUCKDB,
) -> str:
    """The value as ``column_type``; every non-null value must fit it. A ``summary`` of the values makes for a shorter
    expression."""
    return typed_canonical(canonical(value, column_type, settings, summary, dialect), column_type, dialect)


def typed_canonical(text: str, column_type: ColumnType, dialect: SqlDialect = DUCKDB) -> str:
    """The value of a canonical text."""
    return text if column_type.name in ("string", "unknown") else dialect.cast(text, column_type)


def canonical(
    value: str,
    column_type: ColumnType,
    settings: TypingSettings = DEFAULT_TYPING,
    summary: ColumnSummary | None = None,
    dialect: SqlDialect = DUCKDB,
) -> str:
    """The canonical text of the value as ``column_type``; every non-null value must fit it.

    Equal typed values have equal canonical texts. A ``summary`` of the values makes for a shorter expression.
    """
    match column_type.name:
        case "string" | "unknown":
            return value
        case "boolean":
            return f"lower({value})"
        case "bigint" | "double" | "decimal":
            if summary is not None and summary.family == "number" and not summary.fractions:
                return value
            plain = _with_point(value, settings)
            short = dialect.trim_end(dialect.trim_end(plain, "0"), ".")
            with_fraction = (
                f"CASE WHEN {dialect.position(value, decimal_sign(settings))} > 0 THEN {short} ELSE {value} END"
            )
            return f"CASE WHEN substr({value}, -1) = '0' THEN {with_fraction} ELSE {plain} END"
        case "date":
            iso = _iso_date(value, column_type.order, settings)
            return _either_date(value, iso, settings, summary)
        case "timestamp":
            spaced = f"CASE WHEN {dialect.position(value, 'T')} = 0 THEN {value} ELSE replace({value}, 'T', ' ') END"
            short = dialect.trim_end(dialect.trim_end(spaced, "0"), ".")
            size = dialect.byte_length(value)
            return f"CASE {size} WHEN 19 THEN {spaced} WHEN 16 THEN ({spaced}) || ':00' ELSE {short} END"
        case "timestamptz":
            with_seconds = f"substr({value}, 1, 16) || ':00' || substr({value}, 17)"
            zoned = f"CASE WHEN substr({value}, 17, 1) = ':' THEN {value} ELSE {with_seconds} END"
            return f"({dialect.utc(zoned)} || '+00:00')"


def fits(
    value: str, column_type: ColumnType, settings: TypingSettings = DEFAULT_TYPING, dialect: SqlDialect = DUCKDB
) -> str:
    """Whether one value can be stored as ``column_type`` without loss, whatever the other values are.

    Safe on every text, false or NULL for NULL. A d/m/y date fits ``date`` where the settings state the order, or day
    equals month.
    """
    match column_type.name:
        case "string":
            return f"({value} = {value})"
        case "unknown":
            return f"({value} <> {value})"
        case "boolean" | "timestamp" | "timestamptz":
            return in_family(value, column_type.name, settings, dialect)
        case "date":
            pattern = DAY_MONTH[settings.order] if settings.order else DAY_IS_MONTH
            return f"({dialect.matches(value, DATE)} OR {dialect.matches(value, pattern)})"
        case _:
            matched = in_family(value, "number", settings, dialect)
            return f"CASE WHEN {matched} THEN {_number_fits(value, column_type, settings, dialect)} ELSE false END"


class NumberParts:
    """Measures of a text in the family of numbers, as SQL expressions over it.

    ``point`` is the expression for the position of its decimal sign; without ``fractions`` none has one.
    """

    def __init__(
        self, value: str, point: str, settings: TypingSettings, dialect: SqlDialect, *, fractions: bool = True
    ) -> None:
        size = dialect.byte_length(value)
        sign = f"CASE WHEN {value} < '0' THEN 1 ELSE 0 END"
        self._value = value
        self._dialect = dialect
        self._decimal_sign = decimal_sign(settings)
        if not fractions:
            self.has_fraction = "false"
            self.scale = "0"
            self.integer_length = f"({size} - {sign})"
            self.integer_digits = f"CASE WHEN {value} = '0' THEN 0 ELSE {self.integer_length} END"
            self.integer_part = value
            return
        self.has_fraction = f"({point} > 0)"
        trimmed = f"{dialect.byte_length(dialect.trim_end(value, '0'))} - {point}"
        self.scale = (
            f"CASE WHEN {point} = 0 THEN 0 WHEN substr({value}, -1) = '0' THEN {trimmed} ELSE {size} - {point} END"
        )
        self.integer_length = f"(CASE WHEN {point} = 0 THEN {size} ELSE {point} - 1 END - {sign})"
        # Only a lone zero begins with '0'; bytes compare, so these ranges are "begins with 0" and "begins with -0".
        is_zero = f"({value} >= '0' AND {value} < '1') OR ({value} >= '-0' AND {value} < '-1')"
        self.integer_digits = f"CASE WHEN {is_zero} THEN 0 ELSE {self.integer_length} END"
        self.integer_part = f"CASE WHEN {point} = 0 THEN {value} ELSE substr({value}, 1, {point} - 1) END"

    def significant_digits(self, integer_digits: str, scale: str) -> str:
        """From the first non-zero digit to the last, trailing zeros of the fraction dropped."""
        leading = f"-0{self._decimal_sign}"
        small = self._dialect.byte_length(self._dialect.trim_start(self._dialect.trim_end(self._value, "0"), leading))
        return f"CASE WHEN {integer_digits} > 0 THEN {integer_digits} + {scale} ELSE {small} END"

    def beyond_64_bits(self) -> str:
        """Whether the integer part is outside the range of a 64-bit integer."""
        part = self.integer_part
        return (
            f"CASE WHEN {self._dialect.byte_length(self._value)} < 19 OR {self.integer_length} < 19 THEN false "
            f"WHEN {self.integer_length} > 19 THEN true "
            f"WHEN {self._value} < '0' THEN {part} > '-9223372036854775808' ELSE {part} > '9223372036854775807' END"
        )


def _number_fits(value: str, column_type: ColumnType, settings: TypingSettings, dialect: SqlDialect) -> str:
    parts = NumberParts(value, dialect.position(value, decimal_sign(settings)), settings, dialect)
    scale = f"({parts.scale})"
    digits = f"({parts.integer_digits})"
    match column_type.name:
        case "bigint":
            return f"({scale} = 0 AND NOT ({parts.beyond_64_bits()}))"
        case "double":
            return f"({parts.significant_digits(digits, scale)}) <= {DOUBLE_DIGITS}"
        case _:
            most = DECIMAL_PRECISION - column_type.scale
            return f"({scale} <= {column_type.scale} AND {digits} <= {most})"


def _with_point(value: str, settings: TypingSettings) -> str:
    return f"replace({value}, ',', '.')" if settings.decimal_comma else value


def _iso_date(value: str, order: DateOrder | None, settings: TypingSettings) -> str:
    """A d/m/y date as ISO text."""
    # What a user has stated for the file comes before what the dataset's values have decided.
    order = settings.file_date_order or order or settings.date_order or "dmy"

    def part(number: int) -> str:
        return f"lpad(split_part({value}, substr({value}, -5, 1), {number}), 2, '0')"

    day, month = (part(1), part(2)) if order == "dmy" else (part(2), part(1))
    return f"substr({value}, -4) || '-' || {month} || '-' || {day}"


def _either_date(value: str, iso: str, settings: TypingSettings, summary: ColumnSummary | None) -> str:
    family = summary.family if summary is not None else None
    if family in ("day_month", "stated_date"):
        return iso
    # Where the order is stated for a file, its ISO dates may have d/m/y dates among them.
    if family == "date" and settings.file_date_order is None:
        return value
    return f"CASE WHEN substr({value}, -3, 1) = '-' THEN {value} ELSE {iso} END"


def _minutes(value: str, start: int) -> str:
    """Minutes of the text ``HH:MM`` that begins at ``start``."""
    return f"(CAST(substr({value}, {start}, 2) AS INT) * 60 + CAST(substr({value}, {start + 3}, 2) AS INT))"


def _offset_minutes(value: str) -> str:
    """Minutes by which the local time of a zoned timestamp is ahead of UTC."""

    def offset(hours: int) -> str:
        return f"(CAST(substr({value}, {hours}, 2) AS INT) * 60 + CAST(substr({value}, -2) AS INT))"

    sign = f"substr({value}, -6, 1)"
    return (
        f"CASE WHEN substr({value}, -1) = 'Z' THEN 0 "
        f"WHEN {sign} = '+' THEN {offset(-5)} WHEN {sign} = '-' THEN -{offset(-5)} "
        f"WHEN substr({value}, -5, 1) = '+' THEN {offset(-4)} ELSE -{offset(-4)} END"
    )
