"""The rules of types, value by value in plain Python, sharing nothing with the SQL and the patterns under test."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

TRIMMED = {" ", "\t", "\n", "\v", "\f", "\r", "\u00a0", "\ufeff"}
DIGITS = set("0123456789")


@dataclass(frozen=True)
class Rules:
    """What the settings say."""

    null_tokens: frozenset[str] = frozenset()
    decimal_comma: bool = False
    date_order: str | None = None
    file_date_order: str | None = None


@dataclass(frozen=True)
class Value:
    """What one text is."""

    text: str
    kind: str
    canonical: str
    number: Decimal | None = None
    fraction: bool = False
    integer_digits: int = 0
    scale: int = 0
    significant: int = 0
    readings: tuple[dt.date | None, dt.date | None] = (None, None)
    separator: str = ""


def trim(field: str | None, rules: Rules) -> str | None:
    if field is None:
        return None
    characters = list(field)
    while characters and characters[0] in TRIMMED:
        characters.pop(0)
    while characters and characters[-1] in TRIMMED:
        characters.pop()
    text = "".join(characters)
    return None if not text or text in rules.null_tokens else text


def all_digits(text: str) -> bool:
    return bool(text) and all(c in DIGITS for c in text)


def whole_number(text: str) -> bool:
    return all_digits(text) and (text == "0" or text[0] != "0")


def number(text: str, rules: Rules) -> Value | None:
    sign = "," if rules.decimal_comma else "."
    body = text[1:] if text.startswith("-") else text
    if body.count(sign) > 1:
        return None
    whole, has_fraction, fraction = body.partition(sign)
    if not whole_number(whole) or len(whole) > 38:
        return None
    if has_fraction and (not all_digits(fraction) or len(fraction) > 38):
        return None
    if text.startswith("-") and set(whole + fraction) == {"0"}:
        return None
    needed = fraction
    while needed.endswith("0"):
        needed = needed[:-1]
    digits = whole + needed
    while digits.startswith("0"):
        digits = digits[1:]
    minus = "-" if text.startswith("-") else ""
    canonical = minus + whole + ("." + needed if needed else "")
    with localcontext() as context:
        context.prec = 200
        exact = Decimal(canonical)
    return Value(
        text,
        "number",
        canonical,
        number=exact,
        fraction=bool(has_fraction),
        integer_digits=0 if whole == "0" else len(whole),
        scale=len(needed),
        significant=len(digits),
    )


def real_date(year: int, month: int, day: int) -> dt.date | None:
    try:
        return dt.date(year, month, day)
    except ValueError:
        return None


def iso_date(text: str) -> dt.date | None:
    if len(text) != 10 or text[4] != "-" or text[7] != "-":
        return None
    parts = (text[:4], text[5:7], text[8:])
    return real_date(*map(int, parts)) if all(map(all_digits, parts)) else None


def day_month(text: str) -> Value | None:
    used = {c for c in text if c in "/.-"}
    if len(used) != 1:
        return None
    separator = used.pop()
    parts = text.split(separator)
    if len(parts) != 3 or not all(map(all_digits, parts)):
        return None
    if len(parts[0]) > 2 or len(parts[1]) > 2 or len(parts[2]) != 4:
        return None
    first, second, year = map(int, parts)
    readings = (real_date(year, second, first), real_date(year, first, second))
    return None if readings == (None, None) else Value(text, "day_month", "", readings=readings, separator=separator)


def clock(text: str) -> dt.time | None:
    """``HH:MM[:SS[.f{1,6}]]``."""
    main, dot, fraction = text.partition(".")
    parts = main.split(":")
    if len(parts) not in (2, 3) or not all(len(p) == 2 and all_digits(p) for p in parts):
        return None
    if dot and (len(parts) != 3 or not all_digits(fraction) or len(fraction) > 6):
        return None
    hour, minute, second = [*map(int, parts), 0][:3]
    if hour > 23 or minute > 59 or second > 59:
        return None
    return dt.time(hour, minute, second, int(fraction.ljust(6, "0")) if dot else 0)


def timestamp(text: str) -> Value | None:
    date = iso_date(text[:10])
    if date is None or text[10:11] not in ("T", " "):
        return None
    rest, minutes = text[11:], None
    if rest.endswith("Z"):
        rest, minutes = rest[:-1], 0
    else:
        for sign in "+-":
            local, found, offset = rest.rpartition(sign)
            if found:
                hours, colon, minute = offset.partition(":")
                if not colon:
                    hours, minute = offset[:-2], offset[-2:]
                if len(hours) != 2 or len(minute) != 2 or not all_digits(hours + minute) or int(minute) > 59:
                    return None
                minutes = int(hours) * 60 + int(minute)
                if minutes > 18 * 60:
                    return None
                rest, minutes = local, -minutes if sign == "-" else minutes
    time = clock(rest)
    if time is None:
        return None
    instant = dt.datetime.combine(date, time)
    if minutes is not None:
        try:
            instant -= dt.timedelta(minutes=minutes)
        except OverflowError:
            return None
    shown = instant.isoformat(" ")
    if "." in shown:
        shown = shown.rstrip("0")
    zoned = minutes is not None
    return Value(text, "timestamptz" if zoned else "timestamp", shown + ("+00:00" if zoned else ""))


def look(text: str, rules: Rules) -> Value:
    """What a trimmed text is."""
    if text.lower() in ("true", "false") and text.isascii():
        return Value(text, "boolean", text.lower())
    if found := number(text, rules):
        return found
    if date := iso_date(text):
        return Value(text, "date", date.isoformat())
    if found := day_month(text):
        if rules.file_date_order is None:
            return found
        # What a user has stated for the file makes a date certain, or no date at all.
        reading = found.readings[rules.file_date_order == "mdy"]
        return Value(text, "stated_date", reading.isoformat()) if reading else Value(text, "text", text)
    return timestamp(text) or Value(text, "text", text)


def column_type(values: Sequence[Value], rules: Rules) -> tuple[str, str | None]:
    """The type of a column of one file with these non-null values, and the order of its d/m/y dates."""
    if not values:
        return "unknown", None
    kinds = {"date" if value.kind == "stated_date" else value.kind for value in values}
    if len(kinds) > 1:
        return "string", None
    kind = kinds.pop()
    if kind == "number":
        return number_type(values), None
    if kind == "day_month":
        return day_month_type(values, rules)
    return ("string" if kind == "text" else kind), None


def number_type(values: Sequence[Value]) -> str:
    if not any(value.fraction for value in values):
        inside = all(-(2**63) <= value.number < 2**63 for value in values if value.number is not None)
        return "bigint" if inside else "decimal(38,0)"
    if all(value.significant <= 15 for value in values):
        return "double"
    scale = max(value.scale for value in values)
    return f"decimal(38,{scale})" if max(value.integer_digits for value in values) + scale <= 38 else "string"


def day_month_type(values: Sequence[Value], rules: Rules) -> tuple[str, str | None]:
    if len({value.separator for value in values}) > 1:
        return "string", None
    real = {
        "dmy": all(value.readings[0] is not None for value in values),
        "mdy": all(value.readings[1] is not None for value in values),
    }
    if stated := rules.date_order:
        return ("date", stated) if real[stated] else ("string", None)
    if all(value.readings[0] == value.readings[1] for value in values):
        return "date", None
    if real["dmy"] == real["mdy"]:
        return "string", None
    return "date", "dmy" if real["dmy"] else "mdy"


def canonical(value: Value, kind: str, order: str | None) -> str:
    """The canonical text of a value in a column of that type."""
    if kind == "string":
        return value.text
    if value.kind == "day_month":
        reading = value.readings[1 if order == "mdy" else 0]
        assert reading is not None
        return reading.isoformat()
    return value.canonical


def fits(value: Value, kind: str, rules: Rules) -> bool:
    """Whether a value alone can be stored as a declared type."""
    if kind == "string":
        return True
    if kind == "bigint":
        return value.number is not None and value.scale == 0 and -(2**63) <= value.number < 2**63
    if kind == "double":
        return value.kind == "number" and value.significant <= 15
    if kind.startswith("decimal"):
        scale = int(kind.partition(",")[2].rstrip(")"))
        return value.kind == "number" and value.scale <= scale and value.integer_digits + scale <= 38
    if kind == "date" and value.kind == "day_month":
        if rules.date_order is None:
            return value.readings[0] == value.readings[1]
        return value.readings[rules.date_order == "mdy"] is not None
    if kind == "date":
        return value.kind in ("date", "stated_date")
    return value.kind == kind


def summary(fields: Sequence[str | None], rules: Rules) -> dict[str, Any]:
    """The summary of a column of one file, as the fields of ``ColumnSummary``."""
    texts = [trim(field, rules) for field in fields]
    values = [look(text, rules) for text in texts if text is not None]
    plain = all(field is None or field == (text or "") for field, text in zip(fields, texts, strict=True))
    found: dict[str, Any] = {"count": len(values), "plain": plain}
    kinds = {value.kind for value in values}
    if not values:
        return found
    if kinds == {"date", "stated_date"}:
        kinds = {"date"}
    if len(kinds) > 1 or len({value.separator for value in values}) > 1:
        return found | {"family": "text"}
    kind = kinds.pop()
    if kind == "number":
        return found | {
            "family": kind,
            "fractions": any(value.fraction for value in values),
            "beyond_64_bits": any(not -(2**63) <= whole(value) < 2**63 for value in values),
            "integer_digits": max(value.integer_digits for value in values),
            "scale": max(value.scale for value in values),
            "significant_digits": max(value.significant for value in values),
        }
    if kind == "day_month":
        real = [all(value.readings[i] is not None for value in values) for i in (0, 1)]
        return found | {
            "family": kind,
            "day_first": real[0],
            "month_first": real[1],
            "day_is_month": all(value.readings[0] == value.readings[1] for value in values),
            "separator": values[0].separator,
        }
    return found | {"family": kind}


def whole(value: Value) -> int:
    return int(value.canonical.partition(".")[0])
