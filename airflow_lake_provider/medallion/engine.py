"""What an engine does: files into a dataset's three tables, files out of them, and both anew from bronze.

An engine knows tables and files. It knows nothing of the ledger: whoever calls it says which files the tables hold,
hands over a fence, and writes down the outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from airflow_lake_provider.dataset import DatasetName, Layer

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_lake_provider.medallion.dataset_settings import EffectiveSettings
    from airflow_lake_provider.medallion.present import Present
    from airflow_lake_provider.medallion.types import ColumnSummary

Fence = Callable[[], None]
"""Called before every commit; raises LeaseLost where another worker has taken over."""

Earlier = Literal["nothing", "same", "other"]
"""What the tables may hold of a file that is to be read, see FileWork."""

Progress = Callable[[str, str, dict[str, Any]], None]
"""Called as ``progress(file_id, stage, numbers)`` when a stage of one file is done; numbers are rows, bytes,
seconds."""


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of one file: its name, the header text it came from (None without a header) and what its values are."""

    name: str
    doc: str | None
    summary: ColumnSummary


@dataclass(frozen=True, slots=True)
class PresentFile:
    """A file whose rows the dataset's tables hold."""

    file_id: str
    columns: tuple[FileColumn, ...]
    settings: EffectiveSettings


@dataclass(frozen=True, slots=True)
class FileWork:
    """A file to be taken in.

    ``path`` is a local copy of the uploaded bytes, ``size`` their number. ``earlier`` says what the tables may hold
    of it already: nothing; the ``same`` rows from an attempt that died; or ``other`` rows, read with other settings.
    """

    file_id: str
    name: str
    path: Path
    size: int
    settings: EffectiveSettings
    earlier: Earlier = "nothing"


@dataclass(slots=True)
class FileOutcome:
    """What became of one file: ``ready``; ``failed`` or ``quarantined`` with its reason, and then none of its rows are
    in any table.

    ``rows`` counts the rows that the file has in bronze and silver, and those it added to gold.
    """

    file_id: str
    status: Literal["ready", "failed", "quarantined"]
    reason: str | None = None
    records: int | None = None
    rows: dict[Layer, int] = field(default_factory=dict)
    rescued: int = 0
    notes: list[str] = field(default_factory=list)
    columns: tuple[FileColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column as a user sees it: ``type`` is one of the names in the documentation of types."""

    name: str
    type: str
    doc: str | None


class Engine(Protocol):
    """One way of computing; every engine gives the same tables to the letter."""

    def close(self) -> None:
        """Let go of what the engine holds; the next use opens it again."""

    def ingest(
        self,
        dataset: DatasetName,
        present: Present,
        work: Sequence[FileWork],
        *,
        fence: Fence,
        progress: Progress,
    ) -> list[FileOutcome]:
        """Take files in, in order, with one commit per table; an outcome for each, in the same order.

        ``present`` are the other files of the dataset. A file that cannot be read fails alone. Raises
        LeaseLost, CommitConflict, CatalogUnavailable or StorageError where the whole attempt has to be made again.
        """

    def take_out(self, dataset: DatasetName, present: Present, file_ids: Sequence[str], *, fence: Fence) -> None:
        """Take every row of these files out of the tables; ``present`` are the files that remain."""

    def rebuild(self, dataset: DatasetName, present: Present, *, fence: Fence) -> dict[Layer, int]:
        """Compute silver and gold anew from bronze; gives the rows that each layer holds now."""

    def schema(self, dataset: DatasetName, layer: Layer) -> tuple[list[TableColumn], list[TableColumn]]:
        """The data columns, and the columns that begin with ``_``; raises NotFound where there is no table."""

    def rows(
        self, dataset: DatasetName, layer: Layer, *, file_order: Sequence[str], system: bool, limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a layer: bronze and silver by file (in ``file_order``) and row number, gold sorted by its values.

        Columns as ``schema`` gives them, the ``_`` columns only with ``system``. Raises NotFound where there is no
        table.
        """
