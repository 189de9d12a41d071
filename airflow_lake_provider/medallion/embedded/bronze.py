"""Files into bronze: every record as text, in data files that hold one file each, or several small ones."""

from __future__ import annotations

import datetime as dt
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.types import StringType

from airflow_lake_provider.errors import RecordsDisagree, UnreadableFile, UnsupportedFile
from airflow_lake_provider.medallion.dialect import Doubt
from airflow_lake_provider.medallion.embedded.parquet import (
    BackgroundWriter,
    discard,
    field_metadata,
    new_data_path,
    write_table,
)
from airflow_lake_provider.medallion.embedded.tables import TableChange
from airflow_lake_provider.medallion.engine import FileOutcome, FileWork, Progress
from airflow_lake_provider.medallion.reading import CsvFile, Limits, open_csv

# Files up to this size share a data file with others of their batch; a larger one has data files of its own.
SMALL_FILE_BYTES = 4 << 20
_SHARED_BYTES = 64 << 20

_OFFSET = struct.Struct("=i")

_FILE_ID, _SOURCE_FILE, _INGESTED_AT, _ROW_NUMBER, _RESCUED, _ITEM = 1, 2, 3, 4, 5, 6


@dataclass(slots=True)
class BronzeFile:
    """One file that was read whole: what it has, and where its rows are."""

    work: FileWork
    columns: list[str]
    docs: list[str | None]
    records: int
    rescued: int
    doubts: list[Doubt]
    record_bytes: int


@dataclass(slots=True)
class Unit:
    """Rows that are computed together: those of one large file, in one or more data files, or of several small files
    in one.

    ``paths`` are the Parquet files, ``rows`` their rows in all.
    """

    files: list[BronzeFile]
    paths: list[Path] = field(default_factory=list)
    footers: list[pq.FileMetaData] = field(default_factory=list)
    table: pa.Table | None = None
    """The rows of small files, until it is known which of them go in."""

    @property
    def rows(self) -> int:
        return sum(file.records for file in self.files)


class BronzeWriter:
    """Reads the files of a batch and writes their rows; what cannot be read becomes an outcome and leaves nothing."""

    def __init__(
        self, change: TableChange, *, limits: Limits, temp_dir: Path, target_file_bytes: int, progress: Progress
    ) -> None:
        self._change = change
        self._limits = limits
        self._temp_dir = temp_dir
        self._target_file_bytes = target_file_bytes
        self._progress = progress
        self._ingested_at = dt.datetime.now(dt.UTC)
        self.units: list[Unit] = []
        self.refused: dict[str, FileOutcome] = {}

    def read(self, work: Sequence[FileWork]) -> None:
        """Read every file; afterwards ``units`` hold those that were read and ``refused`` the others."""
        small: list[tuple[BronzeFile, pa.Table]] = []
        small_bytes = 0
        for item in work:
            started = time.monotonic()
            try:
                with open_csv(
                    item.path,
                    item.settings.read_options,
                    name=item.name,
                    limits=self._limits,
                    temp_dir=self._temp_dir,
                ) as source:
                    if item.size <= SMALL_FILE_BYTES:
                        file, table = self._in_memory(item, source)
                        small.append((file, table))
                        small_bytes += table.nbytes
                    else:
                        file, unit = self._to_parquet(item, source)
                        self.units.append(unit)
            except UnreadableFile as error:
                self.refused[item.file_id] = FileOutcome(
                    item.file_id,
                    "quarantined" if isinstance(error, UnsupportedFile) else "failed",
                    reason=str(error),
                )
                continue
            self._progress(
                item.file_id,
                "read",
                {"records": file.records, "bytes": item.size, "seconds": round(time.monotonic() - started, 3)},
            )
            if small_bytes >= _SHARED_BYTES:
                self._share(small)
                small, small_bytes = [], 0
        self._share(small)

    def write_shared(self, unit: Unit) -> None:
        """Write the rows of small files, once it is known which of them go in."""
        if unit.table is None:
            return
        if unit.table.num_rows:
            path = new_data_path(self._change.data_location, unit.files[0].work.file_id)
            unit.footers = [write_table(path, unit.table)]
            unit.paths = [path]
        unit.table = None

    def _share(self, small: list[tuple[BronzeFile, pa.Table]]) -> None:
        if small:
            table = pa.concat_tables([table for _, table in small], promote_options="default")
            self.units.append(Unit([file for file, _ in small], table=table))

    def _batches(self, item: FileWork, source: CsvFile, totals: _Totals) -> Iterator[pa.RecordBatch]:
        """The reader's batches with the ``_`` columns and every field's id."""
        schema = self._schema(source.columns)
        for batch in source.batches():
            totals.add(batch)
            rows = batch.num_rows
            yield pa.RecordBatch.from_arrays(
                [
                    _constant(item.file_id, pa.string(), rows),
                    _constant(item.name, pa.string(), rows),
                    _constant(self._ingested_at, pa.timestamp("us", "UTC"), rows),
                    batch.column(len(source.columns)),
                    batch.column(len(source.columns) + 1),
                    *batch.columns[: len(source.columns)],
                ],
                schema=schema,
            )

    def _schema(self, columns: Sequence[str]) -> pa.Schema:
        constant = pa.dictionary(pa.int8(), pa.string())
        return pa.schema(
            [
                pa.field("_file_id", constant, metadata=field_metadata(_FILE_ID)),
                pa.field("_source_file", constant, metadata=field_metadata(_SOURCE_FILE)),
                pa.field("_ingested_at", pa.timestamp("us", "UTC"), metadata=field_metadata(_INGESTED_AT)),
                pa.field("_row_number", pa.int64(), metadata=field_metadata(_ROW_NUMBER)),
                pa.field(
                    "_rescued",
                    pa.list_(pa.field("element", pa.string(), metadata=field_metadata(_ITEM))),
                    metadata=field_metadata(_RESCUED),
                ),
                *(
                    pa.field(name, pa.string(), metadata=field_metadata(self._change.field_id(name, StringType())))
                    for name in columns
                ),
            ]
        )

    def _in_memory(self, item: FileWork, source: CsvFile) -> tuple[BronzeFile, pa.Table]:
        totals = _Totals(len(source.columns))
        schema = self._schema(source.columns)
        table = pa.Table.from_batches(self._batches(item, source, totals), schema=schema)
        # Plain text again: tables of several files are put together, and their constants differ.
        plain = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
        return totals.file(item, source), table.cast(pa.schema(plain))

    def _to_parquet(self, item: FileWork, source: CsvFile) -> tuple[BronzeFile, Unit]:
        totals = _Totals(len(source.columns))
        schema = self._schema(source.columns)
        unit = Unit([])
        batches = self._batches(item, source, totals)
        try:
            exhausted = False
            while not exhausted:
                path = new_data_path(self._change.data_location, item.file_id)
                with BackgroundWriter(path, schema) as writer:
                    exhausted = True
                    for batch in batches:
                        writer.write(batch)
                        if writer.size >= self._target_file_bytes:
                            exhausted = False
                            break
                    footer = writer.close()
                if footer.num_rows == 0:
                    path.unlink()
                else:
                    unit.paths.append(path)
                    unit.footers.append(footer)
            file = totals.file(item, source)
            written_rows = sum(footer.num_rows for footer in unit.footers)
            if written_rows != file.records:
                raise RecordsDisagree(
                    f"File {item.name} has {file.records} records, but {written_rows} rows were written; "
                    "nothing was committed."
                )
        except BaseException:
            discard(unit.paths)
            raise
        unit.files.append(file)
        return file, unit


class _Totals:
    """Counts what goes by, to be held against what the reader counted on its own."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows = 0
        self._bytes = 0
        self._rescued = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        for column in batch.columns[: self._width]:
            self._bytes += _text_bytes(column)
        rescued = batch.column(self._width + 1)
        self._rescued += len(rescued) - rescued.null_count
        if rescued.null_count != len(rescued):
            self._bytes += _text_bytes(rescued.flatten())

    def file(self, item: FileWork, source: CsvFile) -> BronzeFile:
        counted = source.counts
        if (self._rows, self._bytes) != (counted.records, counted.field_bytes):
            raise RecordsDisagree(
                f"File {item.name} was counted as {counted.records} records with {counted.field_bytes} bytes of text, "
                f"but {self._rows} records with {self._bytes} bytes were read; nothing was committed."
            )
        return BronzeFile(
            work=item,
            columns=list(source.columns),
            docs=list(source.header) if source.header is not None else [None] * len(source.columns),
            records=self._rows,
            rescued=self._rescued,
            doubts=list(source.doubts),
            record_bytes=self._bytes,
        )


def _text_bytes(column: pa.Array) -> int:
    """The UTF-8 bytes of all values of a text array."""
    if column.null_count == 0 and pa.types.is_string(column.type):
        offsets = column.buffers()[1]
        if offsets is not None:
            (first,) = _OFFSET.unpack_from(offsets, 4 * column.offset)
            (last,) = _OFFSET.unpack_from(offsets, 4 * (column.offset + len(column)))
            return int(last - first)
    return pc.sum(pc.binary_length(column)).as_py() or 0


def _constant(value: object, kind: pa.DataType, rows: int) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.repeat(pa.scalar(value, kind), rows)
    indices = pa.repeat(pa.scalar(0, pa.int8()), rows)
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], kind))
