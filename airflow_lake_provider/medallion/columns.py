"""Column names: what a header text is called in the tables."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

# ASCII whitespace, the no-break space and the byte order mark.
_TRIMMED: Final = " \t\n\r\v\f\u00a0\ufeff"


def column_names(header: Sequence[str]) -> list[str]:
    """The column names for the field texts of a header record, in their order and all different.

    A name holds lower-case letters, marks and decimal digits of any script in NFC; every run of other characters is
    one ``_``, and none stands at either end. A text without such characters is ``column_<position>``, counted from
    1. Of equal names the first keeps its name, and the others get the smallest free ``_2``, ``_3``, …: a name that
    stands in the header as such is never free, wherever it stands.
    """
    wanted = [_plain_name(text) for text in header]
    taken = set(wanted)
    names: list[str] = []
    given: set[str] = set()
    suffixes: dict[str, int] = {}
    for position, plain in enumerate(wanted, start=1):
        name = plain
        if not plain:
            plain = name = f"column_{position}"
            unused = name not in taken
        else:
            unused = name not in given
        if not unused:
            suffix = suffixes.get(plain, 2)
            while f"{plain}_{suffix}" in taken:
                suffix += 1
            suffixes[plain] = suffix + 1
            name = f"{plain}_{suffix}"
        names.append(name)
        given.add(name)
        taken.add(name)
    return names


def positional_names(width: int) -> list[str]:
    """The names of the ``width`` columns of a file without a header: ``column_1``, ``column_2``, …"""
    return [f"column_{position}" for position in range(1, width + 1)]


def _plain_name(text: str) -> str:
    text = unicodedata.normalize("NFC", text.strip(_TRIMMED)).lower()
    text = unicodedata.normalize("NFC", text)
    if text.isascii():
        kept = "".join(character if character.isalnum() else "_" for character in text)
    else:
        kept = "".join(character if _is_kept(character) else "_" for character in text)
    return "_".join(part for part in kept.split("_") if part)


def _is_kept(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LM" or category == "Nd"
