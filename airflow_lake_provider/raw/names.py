"""Which names an uploaded file may have."""

from __future__ import annotations

import unicodedata

from airflow_lake_provider.errors import InvalidName

MAX_NAME_BYTES = 255  # what Linux and macOS file systems allow for one name


def clean_file_name(name: str) -> str:
    """Return ``name`` as it is; raises InvalidName where it could not be stored under that very name.

    Everything that is one name is allowed: any script, spaces, quotes, ``%``, ``#``, ``?``, ``+``. Refused are the
    empty name, ``.`` and ``..``, slashes and backslashes, control characters and line separators, and what has no
    UTF-8 form or more than 255 bytes of it.
    """
    fault = _fault(name)
    if fault:
        raise InvalidName(f"The file name {_shown(name)} cannot be used: {fault}.")
    return name


def _fault(name: str) -> str | None:
    if not name.strip():
        return "it must not be empty"
    if "/" in name or "\\" in name:
        return "it must be a name alone, without '/' or '\\'"
    if name in (".", ".."):
        return "it must not be '.' or '..', which stand for folders"
    for position, character in enumerate(name, start=1):
        if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
            return f"character {position} is the control character U+{ord(character):04X}, rename the file without it"
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        return f"character {error.start + 1} cannot be written as UTF-8, rename the file without it"
    if size > MAX_NAME_BYTES:
        return f"it has {size} bytes as UTF-8, and at most {MAX_NAME_BYTES} are allowed"
    return None


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 80 else f"{name[:79]}…")
