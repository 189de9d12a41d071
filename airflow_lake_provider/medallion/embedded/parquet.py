"""Data files: written by Arrow or DuckDB with Iceberg field ids, and described for the commit."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import compute_statistics_plan, data_file_statistics_from_parquet_metadata
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import ListType, NestedField

from airflow_lake_provider.errors import CommitUnknown, SettingsError
from airflow_lake_provider.medallion.embedded.storage import is_full, no_space

# DuckDB's COPY starts threads and row groups for 33 ms; below this many rows Arrow is done in 3.
_SMALL_ROWS = 20_000
_SAMPLE_ROWS = 4_096
_GROUP_ROWS = 120_000
_GROUP_BYTES = 64 << 20
# The data files that were begun in this context and belong to no commit yet.
_uncommitted: ContextVar[set[Path] | None] = ContextVar("uncommitted", default=None)
_COMPRESSION = {"compression": "zstd", "compression_level": 1}


def local_path(uri: str) -> Path:
    """The path behind a ``file:`` URI or a plain path; raises SettingsError for remote storage."""
    if uri.startswith("file://"):
        return Path(uri.removeprefix("file://"))
    if uri.startswith("file:"):
        return Path(uri.removeprefix("file:"))
    if "://" in uri:
        raise SettingsError(
            f"The table location {uri} cannot be used by the duckdb engine: it writes to a local folder; "
            "set LAKE_WAREHOUSE to one."
        )
    return Path(uri)


def new_data_path(data_location: str, stem: str) -> Path:
    """A path for a data file that no file has had before: paths are never used twice."""
    folder = local_path(data_location)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-{uuid.uuid4().hex}.parquet"
    if (uncommitted := _uncommitted.get()) is not None:
        uncommitted.add(path)
    return path


class Uncommitted:
    """Data files whose paths are given out while the block runs; those that no commit took in go when it raises."""

    def __init__(self) -> None:
        self._paths: set[Path] = set()

    @contextlib.contextmanager
    def commit(self) -> Iterator[None]:
        """Commit the data files so far in this block. They stay unless it is sure that it did not take place."""
        paths = set(self._paths)
        self._paths.clear()
        try:
            yield
        except CommitUnknown:
            raise
        except Exception:  # but not an interrupt, which may come right after the commit
            self._paths.update(paths)
            raise

    def __enter__(self) -> Uncommitted:
        self._token = _uncommitted.set(self._paths)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _uncommitted.reset(self._token)
        if kind is not None:
            discard(self._paths)


@contextlib.contextmanager
def no_space_named(path: Path) -> Iterator[None]:
    """Turn the many ways in which a full disk shows itself into NoSpaceLeft, and leave no half-written file."""
    try:
        yield
    except BaseException as error:
        discard([path])
        if isinstance(error, OSError | duckdb.Error) and is_full(error):
            raise no_space(path.parent) from error
        raise


def field_metadata(field_id: int) -> dict[bytes, bytes]:
    """Arrow field metadata from which Parquet gets its field id."""
    return {b"PARQUET:field_id": str(field_id).encode()}


class BackgroundWriter:
    """A Parquet file written by a thread of its own, so that reading the next batch and compressing this one overlap.

    At most two batches wait. An error of the thread is raised by the next ``write`` or by ``close``.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.rows = 0
        self.metadata: pq.FileMetaData | None = None
        self.schema = schema
        self._waiting: queue.Queue[pa.RecordBatch | None] = queue.Queue(maxsize=2)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"parquet {path.name}", daemon=True)
        self._thread.start()

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand one batch over; raises what an earlier one met."""
        if self._error is not None:
            raise self._error
        self.rows += batch.num_rows
        self._waiting.put(batch)

    @property
    def size(self) -> int:
        """Bytes that are in the file so far."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def close(self) -> pq.FileMetaData:
        """Finish the file and give its footer; raises NoSpaceLeft or what else the thread met."""
        self._waiting.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self.metadata is not None
        return self.metadata

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._thread.is_alive():
            self._error = self._error or error
            self._waiting.put(None)
            self._thread.join()
        if kind is not None:
            self.path.unlink(missing_ok=True)

    def _run(self) -> None:
        batch: pa.RecordBatch | None = None
        try:
            batch = first = self._waiting.get()
            with (
                no_space_named(self.path),
                pq.ParquetWriter(
                    self.path, self.schema, use_dictionary=_repeating(first, self.schema), **_COMPRESSION
                ) as writer,
            ):
                group: list[pa.RecordBatch] = []
                while batch is not None:
                    group.append(batch)
                    if self._error is None and _is_row_group(group):
                        writer.write_table(pa.Table.from_batches(group))
                        group = []
                    batch = self._waiting.get()
                if group and self._error is None:
                    writer.write_table(pa.Table.from_batches(group))
            self.metadata = pq.read_metadata(self.path)
        except BaseException as error:
            self._error = error
            while batch is not None:  # let the producer go on until it sees the error
                batch = self._waiting.get()


def _is_row_group(batches: Sequence[pa.RecordBatch]) -> bool:
    """Whether there is enough for a row group: many small ones of a wide file cost more than they hold."""
    rows: int = sum(batch.num_rows for batch in batches)
    size: int = sum(batch.nbytes for batch in batches)
    return rows >= _GROUP_ROWS or size >= _GROUP_BYTES


def _repeating(batch: pa.RecordBatch | None, schema: pa.Schema) -> list[str]:
    """The columns whose values repeat, judged by a first batch; for others a dictionary costs more than it saves."""
    names = [field.name for field in schema]
    if batch is None or batch.num_rows == 0:
        return names
    sample = batch.slice(0, _SAMPLE_ROWS)
    return [
        name
        for name, column in zip(names, sample.columns, strict=True)
        if not pa.types.is_string(column.type) or pc.count_distinct(column).as_py() <= sample.num_rows // 4
    ]


def write_table(path: Path, table: pa.Table) -> pq.FileMetaData:
    """Write a small table whose schema has field ids."""
    collected: list[Any] = []
    with no_space_named(path):
        pq.write_table(table, path, metadata_collector=collected, **_COMPRESSION)
    return collected[0]


def quote(name: str) -> str:
    """A SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A SQL string."""
    return "'" + text.replace("'", "''") + "'"


def paths_list(paths: Sequence[Path]) -> str:
    """A SQL list of file paths."""
    return "[" + ", ".join(literal(str(path)) for path in paths) + "]"


def _field_ids(fields: list[NestedField]) -> str:
    return "{" + ", ".join(f"{quote(field.name)}: {field.field_id}" for field in fields) + "}"


def copy_query(
    connection: duckdb.DuckDBPyConnection, sql: str, path: Path, schema: Schema, *, expected_rows: int
) -> pq.FileMetaData | None:
    """Write a query's rows, in order, to a data file with the ids of ``schema``; None (and no file) for no rows.

    ``expected_rows`` is an upper bound, by which the way of writing is chosen.
    """
    if expected_rows <= _SMALL_ROWS:
        table = connection.execute(sql).to_arrow_table()
        if table.num_rows == 0:
            return None
        ids = {field.name: field.field_id for field in schema.fields}
        fields = [pa.field(f.name, f.type, f.nullable, field_metadata(ids[f.name])) for f in table.schema]
        return write_table(path, table.cast(pa.schema(fields)))
    named = {field.name: field for field in schema.fields}
    names = [column[0] for column in connection.execute(f"DESCRIBE {sql}").fetchall()]
    with no_space_named(path):
        connection.execute(
            f"COPY ({sql}) TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, "
            f"FIELD_IDS {_field_ids([named[name] for name in names])})"
        )
    metadata = pq.read_metadata(path)
    if metadata.num_rows == 0:
        path.unlink()
        return None
    return metadata


def copy_file(source: Path, target: Path) -> None:
    """Copy bytes to a new data file (a reflink where the file system can)."""
    with no_space_named(target):
        shutil.copyfile(source, target)


def describe(path: Path, footer: pq.FileMetaData, table: TableMetadata, layout: Schema | None = None) -> DataFile:
    """The manifest entry of a data file, with the column metrics that the table asks for.

    ``layout`` is the schema by which the file was written, where that has columns that the table has not.
    """
    schema = layout or table.schema()
    known = {field.field_id for field in table.schema().fields}
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, table.properties),
        parquet_column_mapping=_paths(schema),
    )
    metrics: dict[str, Any] = {
        name: {key: value for key, value in entry.items() if key in known} if isinstance(entry, dict) else entry
        for name, entry in statistics.to_serialized_dict().items()
    }
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=statistics.partition(table.spec(), table.schema()),
        file_size_in_bytes=path.stat().st_size,
        sort_order_id=None,
        spec_id=table.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **metrics,
    )


def _paths(schema: Schema) -> dict[str, int]:
    """Parquet column paths to field ids; only our own lists nest, and Arrow and DuckDB name their items differently."""
    paths: dict[str, int] = {}
    for field in schema.fields:
        if isinstance(field.field_type, ListType):
            for item in ("element", "item"):
                paths[f"{field.name}.list.{item}"] = field.field_type.element_id
        else:
            paths[field.name] = field.field_id
    return paths


def discard(paths: Iterable[Path]) -> None:
    """Delete data files that were written and will not be committed, as far as the file system lets us."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)
