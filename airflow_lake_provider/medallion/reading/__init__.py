"""Reading delimited text without loss: encoding, dialect, header and records.

``open_csv`` is the reader, ``convert_files`` writes files anew as plain CSV. Everything else is internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_lake_provider.medallion.reading.convert import ConvertResult, convert_files
    from airflow_lake_provider.medallion.reading.reader import Counts, CsvFile, Ragged, open_csv
    from airflow_lake_provider.medallion.reading.source import Limits

__all__ = ["ConvertResult", "Counts", "CsvFile", "Limits", "Ragged", "convert_files", "open_csv"]


def __getattr__(name: str) -> object:
    # The reader needs Arrow and NumPy, which those who only want the definition of a record do not.
    if name in __all__:
        from importlib import import_module

        module = {"convert_files": "convert", "ConvertResult": "convert", "Limits": "source"}.get(name, "reader")
        return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
