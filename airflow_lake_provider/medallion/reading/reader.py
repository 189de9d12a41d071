"""Opening a delimited text file: what was decided about it, and its records in batches."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

import numpy as np
import pyarrow as pa

from airflow_lake_provider.errors import RecordsDisagree, UnclosedQuote, UnreadableFile
from airflow_lake_provider.medallion.columns import column_names, positional_names
from airflow_lake_provider.medallion.dialect import Dialect, Doubt, ReadOptions
from airflow_lake_provider.medallion.reading.blocks import (
    BlockDisagrees,
    BlockRows,
    Noted,
    Piece,
    exact_rows,
    lines_before,
    tokenized_rows,
)
from airflow_lake_provider.medallion.reading.encoding import decide_encoding
from airflow_lake_provider.medallion.reading.exact import Exact, ExactRecord
from airflow_lake_provider.medallion.reading.opening import find_opening
from airflow_lake_provider.medallion.reading.source import Limits, Source
from airflow_lake_provider.medallion.reading.stream import TextStream
from airflow_lake_provider.medallion.reading.structure import Structure, find_structure, spaces_follow
from airflow_lake_provider.medallion.reading.syntax import byte_syntax

ROW_NUMBER: Final = "_row_number"
RESCUED: Final = "_rescued"

BLOCK_SIZE: Final = 2 << 20
_EXACT_BLOCK: Final = 1 << 20
_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 32 << 20
_ALL: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Ragged:
    """Records whose number of fields is not the number of columns: how many, and the physical line of the first."""

    count: int = 0
    first_line: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What a file holds, header and preamble aside, counted on a path of its own.

    ``records``; ``fields`` of all of them, surplus ones included and missing ones not; ``field_bytes`` of the
    fields' texts in UTF-8.
    """

    records: int = 0
    fields: int = 0
    field_bytes: int = 0


@dataclass(slots=True)
class _Job:
    """A block whose records were counted, on its way to columns; ``line`` is the line that it begins in."""

    raw: bytearray
    final: bool
    line: int
    structure: Structure | None
    rows: BlockRows | None = None


class CsvFile:
    """An open delimited text file; made by ``open_csv``, used as a context manager.

    Known from the beginning: ``name``, ``dialect``, ``header`` (the original texts of the header record, None where
    there is none), ``columns`` (the normalized names), ``width`` (their number), ``preamble`` (records in front of the
    header) and the first ``doubts``. Complete once ``batches`` is exhausted: ``records``, ``short`` and ``long``
    (records with fewer or more fields than columns), ``repaired`` (records whose malformed quoting was given a
    reading), ``counts`` and the last ``doubts``. ``schema`` is that of the batches.
    """

    name: str
    dialect: Dialect
    header: list[str] | None
    columns: list[str]
    width: int
    preamble: int
    doubts: list[Doubt]
    short: Ragged
    long: Ragged
    counts: Counts
    schema: pa.Schema

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: ReadOptions | None = None,
        *,
        name: str | None = None,
        limits: Limits | None = None,
        temp_dir: str | os.PathLike[str] | None = None,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        options = options or ReadOptions()
        limits = limits or Limits()
        self._block_size = block_size
        self._max_record = limits.max_record_bytes
        self._source = Source(path, name=name, limits=limits, temp_dir=temp_dir)
        try:
            self.name = self._source.name
            self._encoding = decide_encoding(self._source, options.encoding)
            self._open(options)
        except BaseException:
            self._source.close()
            raise
        self.short = self.long = self.repaired_records = Ragged()
        self.counts = Counts()
        self._next_row = 1
        self.schema = pa.schema(
            [
                *(pa.field(column, pa.string()) for column in self.columns),
                pa.field(ROW_NUMBER, pa.int64()),
                pa.field(RESCUED, pa.list_(pa.string())),
            ]
        )

    def _open(self, options: ReadOptions, *, keep_spaces: bool = False) -> None:
        """Find out how the text is written, and take it as decided."""
        stream = TextStream(self._source, self._encoding)
        opening = find_opening(stream, options, self.name, self._max_record, keep_spaces=keep_spaces)
        found = opening.found
        self.dialect = replace(found.dialect, encoding=self._encoding.codec)
        self.header = found.header
        self.width = found.width
        self.columns = positional_names(found.width) if found.header is None else column_names(found.header)
        self.preamble = found.dialect.preamble
        self.doubts = [*self._encoding.doubts, *found.doubts]
        self._data_start, self._data_line = opening.start, opening.line
        self._exact = Exact(self.name, self.dialect, self.width)
        self._syntax = byte_syntax(self.dialect)
        if self.dialect.skip_initial_space and not opening.complete and not self._spaces_everywhere():
            # What holds for the sample only would take characters from fields further down.
            self._open(options, keep_spaces=True)

    def _spaces_everywhere(self) -> bool:
        """Whether a space follows every delimiter of the whole file, as it does in the sample."""
        if self._syntax is None:
            return False
        syntax, self._syntax = self._syntax, replace(self._syntax, skip_space=False)
        try:
            return all(job.structure is None or spaces_follow(job.raw, job.structure) for job in self._jobs())
        finally:
            self._syntax = syntax

    @property
    def records(self) -> int:
        """How many records were read so far."""
        return self.counts.records

    @property
    def repaired(self) -> int:
        """How many records had malformed quoting."""
        return self.repaired_records.count

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records in their order, in batches of at most 65,536 rows and about 32 MiB.

        Each has one ``string`` column for every name in ``columns`` (null where the record has no such field, the
        empty string where it is empty), then ``_row_number`` (int64, the record's number from 1) and ``_rescued``
        (list of string: the fields beyond the last column; null where there are none). A second call reads anew.

        Raises UndecodableFile, UnclosedQuote or RecordsDisagree, each with its line, where the rest of the file
        cannot be read without loss; whoever stores batches must then discard those that came before.
        """
        self.counts, self.short, self.long, self.repaired_records = Counts(), Ragged(), Ragged(), Ragged()
        for job, rows in self._rows():
            for piece in rows.pieces:
                yield from self._batches_of(piece)
            self.counts = Counts(
                self.counts.records + rows.rows,
                self.counts.fields + rows.fields,
                self.counts.field_bytes + rows.field_bytes,
            )
            self.short = _added(self.short, rows.short, job.line)
            self.long = _added(self.long, rows.long, job.line)
            self.repaired_records = _added(self.repaired_records, rows.repaired, job.line)
        self._conclude()

    def _batches_of(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        rescued = piece.rescued if piece.rescued is not None else pa.nulls(piece.rows, pa.list_(pa.string()))
        first = self._next_row
        self._next_row += piece.rows
        numbers = pa.array(np.arange(first, first + piece.rows, dtype=np.int64))
        batch = pa.RecordBatch.from_arrays([*piece.columns, numbers, rescued], schema=self.schema)
        yield from _split(batch)

    def _rows(self) -> Iterator[tuple[_Job, BlockRows]]:
        """Every block's rows, in order: while one is given out the next ones are tokenized."""
        self._next_row = 1
        workers = min(4, os.cpu_count() or 1)
        jobs = self._jobs()
        first = next(jobs, None)
        if first is None:
            return
        if first.final:
            yield first, self._columns(first)
            return
        pool = ThreadPoolExecutor(workers, thread_name_prefix="csv")
        waiting: deque[tuple[_Job, Future[BlockRows]]] = deque([(first, pool.submit(self._columns, first))])
        try:
            for job in jobs:
                waiting.append((job, pool.submit(self._columns, job)))
                # As many in hand as can be worked on, and no more: each holds its block in memory.
                while len(waiting) > workers:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _jobs(self) -> Iterator[_Job]:
        """The blocks of the file, each cut behind a record and counted."""
        stream = TextStream(self._source, self._encoding, self._data_start)
        carry: bytes | bytearray = b""
        usual = self._block_size if self._syntax is not None else min(self._block_size, _EXACT_BLOCK)
        size, line, after_return = usual, self._data_line, False
        while True:
            raw, final = stream.block(carry, size)
            if not raw:
                return
            if after_return and raw[0] == 10:
                line -= 1  # the two halves of one line end
            job, end, lines = self._counted(raw, final, line)
            if end or final:
                yield job
                if final:
                    return
                line += lines
                after_return = raw[end - 1] == 13
                carry, size = bytes(memoryview(raw)[end:]), usual
                continue
            if len(raw) > self._max_record:
                raise UnclosedQuote(
                    f"{self.name} has a record in line {line} that does not end within {self._max_record:,} bytes: "
                    "close its quote, or raise the limit max_record_bytes.",
                    line=line,
                )
            carry, size, after_return = raw, len(raw), False

    def _counted(self, raw: bytearray, final: bool, line: int) -> tuple[_Job, int, int]:
        """A block with its records counted, where the last of them ends, and how many lines end before that."""
        size = len(raw)
        if self._syntax is None:
            records = self._read_all(raw, size, final=final, line=line)
            end = size if final else records[-1].end if records else 0
            self._check_consumed(raw, records, end, line)
            return _Job(raw, final, line, None, exact_rows(records, raw, self.width)), end, lines_before(raw, end)
        if final and raw[-1] not in b"\r\n":
            # So that every record has a line end; an empty line more or less is nothing.
            raw += b"\n"

        def read_some(start: int, limit: int) -> list[ExactRecord]:
            return self._read(raw, start, size, limit, final=final, line=line)

        structure = find_structure(raw, self._syntax, read_some, final=final)
        if final and structure.end != len(raw):
            raise self._disagreement(line)
        return _Job(raw, final, line, structure), structure.end, structure.lines

    def _read_all(self, raw: bytearray, end: int, *, final: bool, line: int) -> list[ExactRecord]:
        """All records of a block, read one by one."""
        records: list[ExactRecord] = []
        start = 0
        while start < end:
            found = self._read(raw, start, end, _ALL, final=final, line=line, window=_EXACT_BLOCK)
            if not found:
                break
            records += found
            start = found[-1].end
        return records

    def _read(
        self, raw: bytearray, start: int, end: int, limit: int, *, final: bool, line: int, window: int = 8 << 10
    ) -> list[ExactRecord]:
        with memoryview(raw) as data:
            try:
                return self._exact.few(data, start, end, limit, final=final, first_line=line, window=window)
            except UnreadableFile:
                if not start:
                    raise
        # Lines are counted only where one has to be named.
        line += lines_before(raw, start)
        with memoryview(raw) as data:
            return self._exact.few(data, start, end, limit, final=final, first_line=line, window=window)

    def _columns(self, job: _Job) -> BlockRows:
        if job.rows is not None:
            return job.rows
        assert job.structure is not None
        assert self._syntax is not None
        raw, structure = job.raw, job.structure

        def read_one(start: int) -> ExactRecord:
            return self._read(raw, start, structure.end, 1, final=True, line=job.line)[0]

        try:
            return tokenized_rows(raw, self._syntax, self.width, structure, read_one)
        except (BlockDisagrees, pa.ArrowInvalid):
            return self._again(job, structure)

    def _again(self, job: _Job, structure: Structure) -> BlockRows:
        """A block record by record, after its tokenized rows did not agree with its structure."""
        records = self._read_all(job.raw, len(job.raw), final=job.final, line=job.line)
        inside = [record for record in records if record.start < structure.end]
        self._check_consumed(job.raw, inside, structure.end, job.line)
        return exact_rows(inside, job.raw, self.width)

    def _check_consumed(self, raw: bytearray, records: list[ExactRecord], end: int, line: int) -> None:
        """Whether the records of a block end where it was found to end, but for empty lines."""
        last = records[-1].end if records else 0
        if last > end or raw[last:end].strip(b"\r\n"):
            raise self._disagreement(line)

    def _disagreement(self, line: int) -> RecordsDisagree:
        return RecordsDisagree(
            f"{self.name} cannot be taken in: from line {line} on, two ways of finding the ends of its records differ; "
            "nothing was changed. Please report this with the dialect that the file was read with.",
            line=line,
        )

    def _conclude(self) -> None:
        """Replace what the sample showed by what the whole file has."""
        counted = {"records_short", "records_long", "quoting_malformed"}
        self.doubts = [doubt for doubt in self.doubts if doubt.code not in counted]
        for code, ragged, rest, setting in (
            ("records_short", self.short, f"fewer than {self.width} fields; what is missing is null", "delimiter"),
            ("records_long", self.long, f"more than {self.width} fields; the surplus is kept in _rescued", "delimiter"),
            ("quoting_malformed", self.repaired_records, "text behind a closing quote; nothing of it is lost", "quote"),
        ):
            if ragged.count:
                what = "1 record has" if ragged.count == 1 else f"{ragged.count:,} records have"
                self.doubts.append(Doubt(code, f"{what} {rest}.", setting, ragged.first_line, ragged.count))

    def close(self) -> None:
        """Close the file and remove what was unpacked."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_csv(
    path: str | os.PathLike[str],
    options: ReadOptions | None = None,
    *,
    name: str | None = None,
    limits: Limits | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    block_size: int = BLOCK_SIZE,
) -> CsvFile:
    """Open a delimited text file, plain or gzip, and find out how it is written.

    ``path`` is a local file, ``options`` what is already decided about it, ``name`` what messages call it (the file's
    own name by default). ``temp_dir`` is where a large gzip file is unpacked, within ``limits``. ``block_size`` is how
    many bytes are read at a time. Raises UnreadableFile (see its kinds), SettingsError for options that cannot be
    used, NotFound and StorageError.
    """
    return CsvFile(path, options, name=name, limits=limits, temp_dir=temp_dir, block_size=block_size)


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    if rows > 1 and (rows > _BATCH_ROWS or batch.nbytes > _BATCH_BYTES):
        step = min(_BATCH_ROWS, (rows + 1) // 2)
        for start in range(0, rows, step):
            yield from _split(batch.slice(start, step))
        return
    if rows:
        yield batch


def _added(sum_: Ragged, noted: Noted, line: int) -> Ragged:
    if not noted.count:
        return sum_
    return Ragged(sum_.count + noted.count, sum_.first_line if sum_.count else line + noted.line)
