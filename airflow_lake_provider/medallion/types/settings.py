"""What a dataset's settings say about the values of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from airflow_lake_provider.medallion.types.model import ColumnType, DateOrder

Contract = Literal["evolve", "freeze", "reject_row"]


@dataclass(frozen=True, slots=True)
class TypingSettings:
    """How texts become values.

    ``null_tokens`` are texts that mean null, compared exactly after trimming. ``decimal_comma`` makes ``,`` the decimal
    sign in place of ``.``. ``date_order`` is what a d/m/y column of the dataset takes where its values decide nothing;
    ``file_date_order`` is the order that a user has stated for one file, whose d/m/y dates are then as certain as ISO
    dates. ``contract`` and ``types`` (column name → declared type) belong to the dataset.
    """

    null_tokens: frozenset[str] = frozenset()
    decimal_comma: bool = False
    date_order: DateOrder | None = None
    file_date_order: DateOrder | None = None
    contract: Contract = "evolve"
    types: Mapping[str, ColumnType] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def order(self) -> DateOrder | None:
        """The order stated for d/m/y dates, the file's before the dataset's."""
        return self.file_date_order or self.date_order


DEFAULT_TYPING = TypingSettings()
