"""What a dataset is: its three names, its tables and its address."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from airflow_lake_provider.errors import InvalidName

Layer = Literal["bronze", "silver", "gold"]
LAYERS: tuple[Layer, ...] = ("bronze", "silver", "gold")

_PART = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, order=True)
class DatasetName:
    """``vendor / project / folder``, each 1 to 63 of ``a-z 0-9 _ -``, starting and ending with a letter or digit.

    Upper case is folded, since REST catalogs and many engines fold table names. A hyphen becomes an underscore in
    the table name, so two datasets may want the same table; the ledger refuses the second one.
    """

    vendor: str
    project: str
    folder: str

    def __post_init__(self) -> None:
        for field in ("vendor", "project", "folder"):
            given = getattr(self, field)
            value = unicodedata.normalize("NFC", given).lower() if isinstance(given, str) else ""
            if not _PART.fullmatch(value):
                raise InvalidName(
                    f"The {field} {given!r} cannot be used: it must be 1 to 63 characters of a-z, 0-9, '_' and '-', "
                    "starting and ending with a letter or a digit."
                )
            object.__setattr__(self, field, value)

    @classmethod
    def parse(cls, text: str) -> DatasetName:
        """Read ``V/P/F``; raises InvalidName where there are not three parts."""
        parts = text.strip("/").split("/")
        if len(parts) != 3:
            raise InvalidName(f"The dataset {text!r} cannot be used: it must be written VENDOR/PROJECT/FOLDER.")
        return cls(*parts)

    @property
    def table_name(self) -> str:
        """The name that the dataset's tables have in each of the three namespaces."""
        return f"{self.vendor}__{self.project}__{self.folder}".replace("-", "_")

    def table(self, layer: Layer) -> tuple[str, str]:
        """The Iceberg identifier of one layer: ``(namespace, table)``."""
        return (layer, self.table_name)

    @property
    def asset_uri(self) -> str:
        """The address under which the gold table is known to schedulers."""
        return f"lake://gold/{self.table_name}"

    def __str__(self) -> str:
        return f"{self.vendor}/{self.project}/{self.folder}"
