"""The shapes of values as regular expressions, the one place where they are written down.

Each is matched against a whole trimmed text. They use only what means the same in RE2 (DuckDB) and in Java (Spark):
character classes that are spelled out, groups that capture nothing, alternation and bounded repetition. Everything that
decides whether a text is a real date, month lengths and leap years included, is in the pattern, so that no engine's own
parser has a say.
"""

from __future__ import annotations

from typing import Final

from airflow_lake_provider.medallion.types.model import DECIMAL_PRECISION, DateOrder

TRIMMED: Final = " \t\n\v\f\r\u00a0\ufeff"
"""ASCII whitespace, the no-break space and the byte order mark: what is cut off both ends of a field."""

BOOLEAN: Final = "[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]"

_MOST: Final = DECIMAL_PRECISION
INTEGER: Final = f"0|-?[1-9][0-9]{{0,{_MOST - 1}}}"
"""Up to 38 digits, since more fit no type."""


def number(decimal_sign: str) -> str:
    """Integers, and numbers with a fraction of at most 38 digits. ``negative_zero`` texts are to be taken out."""
    return f"-?(?:0|[1-9][0-9]{{0,{_MOST - 1}}})(?:[{decimal_sign}][0-9]{{1,{_MOST}}})?"


def negative_zero(decimal_sign: str) -> str:
    """Zero with a minus sign, which no number gives back."""
    return f"-0(?:[{decimal_sign}]0+)?"


_YEAR: Final = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR: Final = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"

DATE: Final = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    f"02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
"""A real ISO date from 0001-01-01 to 9999-12-31."""

_TIME: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:[.][0-9]{1,6})?)?"

TIMESTAMP: Final = f"{DATE}[T ]{_TIME}"

TIMESTAMPTZ: Final = f"{TIMESTAMP}(?:Z|[+-](?:(?:0[0-9]|1[0-7]):?[0-5][0-9]|18:?00))"
"""With an offset of at most 18 hours. The instant must also lie in the years 1 to 9999, which the query adds."""

SEPARATORS: Final = "/.-"


def _day_month(order: DateOrder | None) -> str:
    def pair(day: str, month: str, separator: str) -> str:
        first, second = (day, month) if order == "dmy" else (month, day)
        return f"{first}{separator}{second}{separator}"

    each = []
    for separator in (f"[{character}]" for character in SEPARATORS):
        each += [
            pair("(?:0?[1-9]|1[0-9]|2[0-8])", "(?:0?[1-9]|1[0-2])", separator) + _YEAR,
            pair("(?:29|30)", "(?:0?[13-9]|1[0-2])", separator) + _YEAR,
            pair("31", "(?:0?[13578]|1[02])", separator) + _YEAR,
            pair("29", "0?2", separator) + _LEAP_YEAR,
        ]
    return "|".join(each)


DAY_MONTH: Final[dict[DateOrder, str]] = {"dmy": _day_month("dmy"), "mdy": _day_month("mdy")}
"""A real date with day and month in this order, one separator throughout, and a year of four digits."""

DAY_OR_MONTH_FIRST: Final = f"{DAY_MONTH['dmy']}|{DAY_MONTH['mdy']}"

DAY_IS_MONTH: Final = "|".join(
    f"(?:{'|'.join(f'{part}{separator}{part}' for part in [f'0?{n}' for n in range(1, 10)] + ['10', '11', '12'])})"
    f"{separator}{_YEAR}"
    for separator in (f"[{character}]" for character in SEPARATORS)
)
