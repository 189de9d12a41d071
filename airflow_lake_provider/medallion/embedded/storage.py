"""What the file system and DuckDB report when storage refuses, said in this package's errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb

from airflow_lake_provider.errors import CatalogUnavailable, LakeError, NoSpaceLeft, SettingsError, StorageError

# DuckDB gives a text alone: of the operating system's error, or of its own limit for what it spills.
_FULL_WORDS = ("no space left", "quota exceeded")
_SPILL_FULL = "failed to offload"
_OURS = (".parquet", ".avro", ".json")
_QUOTED_PATH = re.compile(r"[\"'](/[^\"']+)[\"']")


@contextlib.contextmanager
def storage_reported(*, temp_dir: Path | None = None, folder: Path | None = None) -> Iterator[None]:
    """Raise what storage refuses as NoSpaceLeft or StorageError with the place, and an HTTP catalog that is away as
    CatalogUnavailable.

    ``temp_dir`` is where DuckDB spills to, ``folder`` the place where the error itself names none. Raises SettingsError
    where DuckDB's memory does not suffice.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # whoever watches has gone; no storage has to do with it
    except (OSError, duckdb.Error) as error:
        reported = _reported(error, temp_dir, folder)
        if reported is None:
            raise
        raise reported from error


def _reported(error: OSError | duckdb.Error, temp_dir: Path | None, folder: Path | None) -> LakeError | None:
    text = str(error)
    if type(error).__module__.partition(".")[0] in ("requests", "urllib3"):  # they derive from OSError
        return CatalogUnavailable(
            f"The Iceberg catalog could not be reached ({type(error).__name__}); see that it runs, and try again."
        )
    if _SPILL_FULL in text:
        return no_space(temp_dir)
    if isinstance(error, duckdb.OutOfMemoryException):
        return SettingsError(
            "The memory that DuckDB may use does not suffice for these rows: raise LAKE_DUCKDB_MEMORY_LIMIT, or set "
            "LAKE_DUCKDB_THREADS to fewer threads."
        )
    place = _place(error, text) or folder
    if place is not None and place.suffix in _OURS:
        place = place.parent  # the name of the file itself says nothing to anyone
    if is_full(error):
        return no_space(place)
    if not isinstance(error, OSError | duckdb.IOException):
        return None
    reason = getattr(error, "strerror", None) or text.partition("\n")[0]
    if place is not None:
        # What the system says, without the path that is named already.
        reason = re.sub(r"^.*(Detail: \[errno [0-9]+\]|[\"']:) ", "", reason)
    return StorageError(
        f"{str(place) if place else 'A file of the warehouse'} could not be read or written: {reason.rstrip('.')}; see "
        "that it is a folder that may be written to, and try again."
    )


def is_full(error: OSError | duckdb.Error) -> bool:
    """Whether the error says that a disk or a quota is full."""
    return getattr(error, "errno", None) in NoSpaceLeft.ERRNOS or any(
        words in str(error).lower() for words in _FULL_WORDS
    )


def no_space(place: Path | None) -> NoSpaceLeft:
    """The error for a full disk, where its place is known."""
    where = f"in {place}" if place is not None else "for the warehouse"
    return NoSpaceLeft(f"There is no space left {where}: make room there, and try again.")


def _place(error: OSError | duckdb.Error, text: str) -> Path | None:
    name = getattr(error, "filename", None)
    if isinstance(name, str):
        return Path(name)
    found = _QUOTED_PATH.search(text)
    return Path(found[1]) if found else None
