"""What a user may decide about a dataset, or about one file of it: how files are read, and what their values mean.

Settings are kept as JSON, by the keys of ``KEYS``. Those of a file go before those of its dataset; the columns that a
file's own ``types`` declare are added to the dataset's.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from airflow_lake_provider.errors import SettingsError
from airflow_lake_provider.medallion.columns import column_names
from airflow_lake_provider.medallion.dialect import ReadOptions
from airflow_lake_provider.medallion.types import ColumnType, TypingSettings
from airflow_lake_provider.medallion.types.patterns import TRIMMED
from airflow_lake_provider.medallion.types.settings import Contract

_CHARACTERS: Final[Mapping[str, str]] = {
    "tab": "\t",
    "comma": ",",
    "semicolon": ";",
    "pipe": "|",
    "space": " ",
    "colon": ":",
    "none": "",
    "backslash": "\\",
    "double": '"',
    "single": "'",
}
_ESCAPED: Final = re.compile(r"\\(?:t|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")
_YES: Final = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}


def _characters(value: Any, *, most: int) -> str:
    if isinstance(value, str):
        text = _CHARACTERS.get(value.lower(), value)
        if text == value:
            text = _ESCAPED.sub(lambda found: chr(int(found[1] or found[2] or "9", 16)), value)
        if len(text) <= most and not any(end in text for end in "\r\n\0"):
            return text
    length = "one character" if most == 1 else f"at most {most} characters"
    raise ValueError(f"{length} without a line end, or a name: {', '.join(_CHARACTERS)}")


def _delimiter(value: Any) -> str:
    return _characters(value, most=8)


def _character(value: Any) -> str:
    text = _characters(value, most=1)
    if text.isalnum():
        raise ValueError("one character that is no letter and no digit, or none")
    return text


def _encoding(value: Any) -> str:
    if isinstance(value, str):
        try:
            found = codecs.lookup(value.strip())
        except LookupError:
            found = None
        # Codecs such as rot13 or base64 turn something else than bytes into text.
        if found is not None and found._is_text_encoding:
            return found.name
    raise ValueError("the name of a character encoding, such as utf-8, cp1252 or utf-16-le")


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _YES:
        return _YES[value.strip().lower()]
    raise ValueError("yes or no")


def _count(value: Any) -> int:
    text = str(value).strip()
    if not isinstance(value, bool) and text.isascii() and text.isdigit() and int(text) <= 1_000_000:
        return int(text)
    raise ValueError("a whole number from 0 to 1000000")


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        value = _json(value, list) if value.lstrip().startswith("[") else [part.strip() for part in value.split(",")]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        # Fields are trimmed before they are compared.
        return sorted({item.strip(TRIMMED) for item in value} - {""})
    raise ValueError('texts with commas between them, or a JSON list such as ["NA", "n/a"]')


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if isinstance(value, str) and value.strip().lower() in allowed:
            return value.strip().lower()
        raise ValueError(" or ".join(allowed))

    return parse


def _types(value: Any) -> dict[str, str]:
    expected = 'columns with their types, such as {"amount": "decimal(38,2)"} or amount=double,when=date'
    if isinstance(value, str):
        if value.lstrip().startswith("{"):
            value = _json(value, dict)
        else:
            pairs = [part.rpartition("=") for part in _outside_brackets(value)]
            if not all(name.strip() and equals for name, equals, _ in pairs):
                raise ValueError(expected)
            value = {name.strip(): kind for name, _, kind in pairs}
    if not isinstance(value, dict) or not all(isinstance(kind, str) for kind in value.values()):
        raise ValueError(expected)
    declared: dict[str, str] = {}
    for given, kind in value.items():
        name = column_name(given)
        if name in declared:
            raise ValueError(f"one type for each column, and {name!r} has two")
        try:
            declared[name] = str(ColumnType.parse(kind))
        except ValueError as error:
            raise ValueError(f"a type for column {name!r}: {error}") from None
    return dict(sorted(declared.items()))


def column_name(given: str) -> str:
    """The name that a column has in the tables, for the name or the header text by which a user calls it."""
    return column_names([given])[0]


def _outside_brackets(text: str) -> list[str]:
    """The parts of a text between its commas, those of ``decimal(38,2)`` left alone."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _json(text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"JSON ({error})") from None
    if not isinstance(value, kind):
        raise ValueError("a JSON object" if kind is dict else "a JSON list")
    return value


KEYS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "delimiter": _delimiter,
        "encoding": _encoding,
        "header": _flag,
        "quote": _character,
        "escape": _character,
        "preamble": _count,
        "null_tokens": _texts,
        "decimal_comma": _flag,
        "date_order": _one_of("dmy", "mdy"),
        "contract": _one_of("evolve", "freeze", "reject_row"),
        "types": _types,
    }
)
"""Every key with what reads its value, from a text or from JSON; each raises ValueError saying what is expected."""


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """What holds for one file: how it is read, and what its values mean."""

    read_options: ReadOptions
    typing: TypingSettings

    @property
    def contract(self) -> Contract:
        """What happens to values and columns that are not declared."""
        return self.typing.contract

    @property
    def types(self) -> Mapping[str, ColumnType]:
        """The declared types by column name."""
        return self.typing.types


def parse_assignments(assignments: Sequence[str], current: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read ``key=value`` texts into checked JSON values by key; ``key=`` gives None, which removes the setting.

    ``types.COLUMN=TYPE`` declares one column beside those of the ``current`` settings, ``types.COLUMN=`` takes it
    out of them. Raises SettingsError naming the key and what is expected.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise SettingsError(f"The setting {assignment!r} cannot be read: write it KEY=VALUE, or KEY= to remove it.")
        if key.startswith("types."):
            # The name as it was given: a column's name may hold what a key may not.
            given = assignment.partition("=")[0].strip().removeprefix("types.")
            types = dict((changes["types"] if "types" in changes else (current or {}).get("types")) or {})
            if text.strip():
                types.update(value_of("types", {given: text}))
            else:
                types.pop(column_name(given), None)
            changes["types"] = types or None
        elif not text:
            changes[_known(key)] = None
        else:
            changes[key] = value_of(key, text)
    return changes


def value_of(key: str, value: Any) -> Any:
    """The checked JSON value of one setting, from a text or from JSON. Raises SettingsError."""
    try:
        return KEYS[_known(key)](value)
    except ValueError as error:
        raise SettingsError(f"The setting {key} cannot be {value!r}: it must be {error}.") from None


def check(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A dataset's settings as checked JSON, None left out. Raises SettingsError, also for what does not go together."""
    checked = {key: value_of(key, value) for key, value in settings.items() if value is not None}
    contract = checked.get("contract", "evolve")
    if contract != "evolve" and not checked.get("types"):
        raise SettingsError(
            f"The setting contract cannot be {contract!r} without types: declare the columns, "
            'such as types={"id": "bigint", "name": "string"}.'
        )
    delimiter = checked.get("delimiter")
    for key, default in (("quote", '"'), ("escape", "")):
        mark = checked.get(key, default)
        if delimiter and mark and mark in delimiter:
            raise SettingsError(
                f"The setting delimiter cannot be {delimiter!r} while {key} is {mark!r}: it must not hold that "
                f"character, so set another delimiter or another {key}."
            )
    return checked


def effective(dataset: Mapping[str, Any], overrides: Mapping[str, Any]) -> EffectiveSettings:
    """What holds for a file with these overrides in a dataset with these settings. Raises SettingsError."""
    types = {**(dataset.get("types") or {}), **(overrides.get("types") or {})}
    merged = check({**dataset, **overrides, "types": types or None})
    return EffectiveSettings(
        read_options=ReadOptions(
            **{key: merged.get(key) for key in ("encoding", "delimiter", "quote", "escape", "header", "preamble")}
        ),
        typing=TypingSettings(
            null_tokens=frozenset(merged.get("null_tokens", ())),
            decimal_comma=merged.get("decimal_comma", False),
            date_order=dataset.get("date_order"),
            file_date_order=overrides.get("date_order"),
            contract=merged.get("contract", "evolve"),
            types=MappingProxyType({name: ColumnType.parse(kind) for name, kind in merged.get("types", {}).items()}),
        ),
    )


def _known(key: str) -> str:
    if key not in KEYS:
        import difflib

        close = difflib.get_close_matches(key, KEYS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(KEYS)}."
        raise SettingsError(f"There is no setting {key!r}: {hint}")
    return key
