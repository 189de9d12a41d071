"""What a cell looks like: a number, a date, a text; and how likely it is that it was cut at the right places."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

Kind = Literal["blank", "number", "date", "time", "boolean", "token", "text"]

_BLANK: Final = " \t\n\r\v\f\u00a0\ufeff"

# A number as a person writes one: sign, currency, groups of thousands, fraction, exponent, percent.
_CURRENCY: Final = "[$€£¥₹₽₩¢]|(?:USD|EUR|GBP|CHF|JPY)"
_DIGITS: Final = (
    r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:\.\d{3})+(?:,\d+)?|\d{1,3}(?:[ '\u00a0\u202f’]\d{3})+(?:[.,]\d+)?"
    r"|\d{1,3}(?:,\d{2})+,\d{3}(?:\.\d+)?|\d+(?:[.,]\d*)?|[.,]\d+)"
)
_NUMBER: Final = re.compile(
    rf"(?:[-+−]\s?|(?P<open>\())?(?:(?:{_CURRENCY})\s?)?[-+−]?{_DIGITS}(?:[eE][-+]?\d+)?"
    rf"(?:\s?(?:%|‰|{_CURRENCY}))?(?(open)\))"
)
_HEX: Final = re.compile(r"[-+]?0[xX][0-9a-fA-F]+")
_YEAR: Final = re.compile(r"19\d\d|20\d\d|2100")

_MONTH: Final = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?|januar|februar|märz|mai|juni|juli|oktober|dezember)\.?"
)
_CLOCK: Final = (
    r"(?:[01]?\d|2[0-4])(?::[0-5]?\d){1,2}(?:[.,:]\d{1,9})?(?:\s?[ap]\.?m\.?)?"
    r"(?:\s?(?:z|[a-z]{3,4}|[-+]\d\d:?(?:\d\d)?))?"
)
_DAY: Final = (
    r"(?:\d{4}([-/.])(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12]\d|3[01])"
    r"|(?:0?[1-9]|[12]\d|3[01])([-/.])(?:0?[1-9]|[12]\d|3[01])\2(?:\d{4}|\d{2})"
    rf"|(?:0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?[-/. ]\s?{_MONTH}[-/., ]\s?(?:\d{{4}}|\d{{2}})"
    rf"|{_MONTH}[-/. ]\s?(?:0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?,?[-/ ]\s?\d{{4}}"
    rf"|\d{{4}}[-/. ]{_MONTH}[-/. ](?:0?[1-9]|[12]\d|3[01]))"
)
_DATE: Final = re.compile(
    rf"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s)?{_DAY}(?:(?:t|,?\s+){_CLOCK})?|\d{{8}}t\d{{4,6}}z?", re.IGNORECASE
)
_TIME: Final = re.compile(_CLOCK, re.IGNORECASE)
_BOOLEAN: Final = re.compile(r"true|false", re.IGNORECASE)
# What has a strict form of its own, so that it was surely not cut in the middle.
_TOKEN: Final = re.compile(
    r"[a-z][a-z0-9+.-]*://\S+|www\.\S+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?|n/?a|nan|null|none|[-+]?inf(?:inity)?|\\n|[-–—.?]{1,3}",
    re.IGNORECASE,
)
_DIGIT: Final = re.compile(r"\d")
# A text of words and the punctuation that goes with them; a comma or semicolon only before a space.
_WORDS: Final = re.compile(r"[^\W_](?:[\w .'’&()%#°+/@*$€£!?=\"-]|[,;:]\s|:)*", re.DOTALL)
_QUOTE_MARKS: Final = "\"'`"
_BESIDE_QUOTE: Final = re.compile(r"[,;|\t]\s*\"|\"\s*[,;|\t]")


def kind_of(text: str) -> Kind:
    """What ``text`` looks like, trimmed; ``token`` is an address, an identifier or a word for "no value"."""
    return _kind(text.strip(_BLANK)) if len(text) <= 400 else "text"


@lru_cache(maxsize=16_384)
def _kind(text: str) -> Kind:
    if not text:
        return "blank"
    if _DIGIT.search(text) is not None and len(text) <= 60:
        if _NUMBER.fullmatch(text) is not None or _HEX.fullmatch(text) is not None:
            return "number"
        if _DATE.fullmatch(text) is not None:
            return "date"
        if _TIME.fullmatch(text) is not None:
            return "time"
    if _BOOLEAN.fullmatch(text) is not None:
        return "boolean"
    return "token" if _TOKEN.fullmatch(text) is not None else "text"


def is_blank(text: str) -> bool:
    """Whether nothing is left of ``text`` after trimming."""
    return not text.strip(_BLANK)


def is_value(text: str) -> bool:
    """Whether ``text`` cannot be a column name: a number other than a year 1900-2100, a date or a boolean."""
    kind = kind_of(text)
    return kind in ("date", "boolean") or (kind == "number" and _YEAR.fullmatch(text.strip(_BLANK)) is None)


def cleanliness(text: str) -> float:
    """How well ``text`` fits into one cell, from 0 (surely cut in the wrong place) to 1."""
    return _cleanliness(text.strip(_BLANK)) if len(text) <= 400 else _long_cleanliness(text)


@lru_cache(maxsize=16_384)
def _cleanliness(text: str) -> float:
    kind = _kind(text)
    if kind != "text":
        return 1.0
    double = text.count('"')
    if double % 2 or _BESIDE_QUOTE.search(text) is not None:
        # "5 inches" is the one honest use of a single quote.
        return 0.75 if double == 1 and re.search(r'\d"', text) is not None and text[0] != '"' else 0.15
    if "\t" in text:
        return 0.3
    if "|" in text or ";" in text.replace("; ", ""):
        return 0.5
    if "," in text.replace(", ", ""):
        return 0.55
    if _WORDS.fullmatch(text) is not None:
        return 0.95
    return 0.6 if any(character.isalnum() for character in text) and text[0] not in _QUOTE_MARKS else 0.45


def _long_cleanliness(text: str) -> float:
    if text.count('"') % 2 or "\t" in text:
        return 0.3
    return 0.7
