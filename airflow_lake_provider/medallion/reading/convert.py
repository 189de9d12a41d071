"""Files written anew as plain CSV (RFC 4180): UTF-8, commas, LF, and quotes only where they are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lake_provider.errors import LakeError, NoSpaceLeft, RecordsDisagree, SettingsError, StorageError
from airflow_lake_provider.medallion.content import check_content
from airflow_lake_provider.medallion.dialect import Dialect, Doubt, ReadOptions
from airflow_lake_provider.medallion.reading.reader import RESCUED, ROW_NUMBER, Counts, CsvFile, open_csv
from airflow_lake_provider.medallion.reading.source import Limits

_SPECIAL: Final = '",\r\n'
_IS_SPECIAL: Final = np.zeros(256, np.bool_)
_IS_SPECIAL[[ord(character) for character in _SPECIAL]] = True


@dataclass(frozen=True, slots=True)
class ConvertResult:
    """What became of one file: ``output`` is what was written, or ``error`` says why nothing was.

    ``dialect``, ``counts`` and ``doubts`` are as the reader gives them, as far as it came.
    """

    path: Path
    output: Path | None = None
    error: LakeError | None = None
    dialect: Dialect | None = None
    counts: Counts = field(default_factory=Counts)
    doubts: tuple[Doubt, ...] = ()


def convert_files(
    paths: Iterable[str | os.PathLike[str]],
    out_dir: str | os.PathLike[str],
    *,
    options: ReadOptions | None = None,
    limits: Limits | None = None,
    on_result: Callable[[ConvertResult], object] | None = None,
) -> list[ConvertResult]:
    """Write each of the delimited text files ``paths`` anew into the folder ``out_dir``, which is made if need be.

    The output has the file's name (without ``.gz``): UTF-8 without a byte order mark, commas, LF, quotes only around
    fields with a comma, a quote or a line end; the header record if the file has one, no preamble, and every record
    with the fields that it has, surplus ones included. It appears under its name only once it is whole, in place of an
    older one. A file that cannot be read without loss leaves no output, and the others go on. Of two inputs that would
    have the same output the second is refused. ``on_result`` is called after each file. Raises StorageError where the
    folder cannot be made.
    """
    folder = Path(out_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"The folder {folder} cannot be made: {error.strerror or error}.") from error
    taken: dict[str, Path] = {}
    results = []
    for given in paths:
        path = Path(given)
        output = folder / _output_name(path)
        result: ConvertResult
        if (other := taken.setdefault(output.name, path)) is not path:
            result = ConvertResult(
                path,
                error=SettingsError(
                    f"{path} was not converted: its output {output.name} would replace that of {other}; convert it "
                    "into another folder, or rename it."
                ),
            )
        elif output.exists() and path.exists() and output.samefile(path):
            result = ConvertResult(
                path,
                error=SettingsError(f"{path} was not converted: its output would replace it; choose another folder."),
            )
        else:
            result = _convert(path, output, options, limits)
        results.append(result)
        if on_result is not None:
            on_result(result)
    return results


def _output_name(path: Path) -> str:
    return path.stem if path.suffix.lower() in (".gz", ".gzip") else path.name


def _convert(path: Path, output: Path, options: ReadOptions | None, limits: Limits | None) -> ConvertResult:
    partial = output.with_name(f".{output.name}.{os.getpid()}.part")
    file: CsvFile | None = None
    try:
        check_content(path)
        with open_csv(path, options, limits=limits, temp_dir=output.parent) as file:
            try:
                with partial.open("wb") as out:
                    _write(file, out)
                partial.replace(output)
            except OSError as error:
                if error.errno in NoSpaceLeft.ERRNOS:
                    raise NoSpaceLeft(
                        f"{path.name} was not converted: there is no space left in {output.parent}."
                    ) from error
                raise StorageError(
                    f"{path.name} was not converted: {output} cannot be written ({error.strerror or error})."
                ) from error
            finally:
                partial.unlink(missing_ok=True)
    except LakeError as error:
        if file is None:
            return ConvertResult(path, error=error)
        return ConvertResult(path, None, error, file.dialect, file.counts, tuple(file.doubts))
    return ConvertResult(path, output, None, file.dialect, file.counts, tuple(file.doubts))


class _Out(Protocol):
    def write(self, data: bytes | memoryview, /) -> object: ...


def _write(file: CsvFile, out: _Out) -> None:
    started = False
    if file.header is not None:
        line = ",".join(_quoted(text) for text in file.header) if file.header != [""] else '""'
        if line.startswith("\ufeff"):
            line = _quoted(file.header[0], always=True) + line[len(file.header[0]) :]
        out.write(f"{line}\n".encode())
        started = True
    records = 0
    for batch in file.batches():
        lines = _lines(batch, file.width)
        data = _bytes(lines)
        if not started and bytes(data[:3]) == b"\xef\xbb\xbf":
            # A character of the first field must not become a byte order mark.
            first = str(batch.column(0)[0].as_py())
            out.write(_quoted(first, always=True).encode())
            data = data[len(first.encode()) :]
        started = True
        records += batch.num_rows
        out.write(data)
    if records != file.records:
        raise RecordsDisagree(
            f"{file.name} was not converted: {records} records were written and {file.records} counted; please report "
            "this with the dialect that the file was read with."
        )


def _quoted(text: str, *, always: bool = False) -> str:
    if always or any(character in text for character in _SPECIAL):
        return '"' + text.replace('"', '""') + '"'
    return text


def _lines(batch: pa.RecordBatch, width: int) -> pa.Array:
    """One text per record, line end included."""
    assert batch.schema.names[width:] == [ROW_NUMBER, RESCUED]
    columns = [_quoted_column(batch.column(index)) for index in range(width)]
    rescued = batch.column(width + 1)
    if rescued.null_count < len(rescued):
        columns.append(_joined_lists(rescued))
    # Fields that are not there are null, and left out.
    lines = pc.binary_join_element_wise(*columns, ",", null_handling="skip")
    # An empty line would be no record.
    lines = pc.if_else(pc.equal(lines, ""), '""', lines)
    return pc.binary_join_element_wise(lines, "", "\n")


def _joined_lists(rescued: pa.Array) -> pa.Array:
    values = _quoted_column(rescued.flatten())
    lengths = pc.fill_null(pc.list_value_length(rescued), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(rescued) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    lists = pa.ListArray.from_arrays(pa.array(offsets), values, mask=pc.is_null(rescued))
    return pc.binary_join(lists, ",")


def _quoted_column(column: pa.Array) -> pa.Array:
    if not len(column):
        return column
    values = column.buffers()[2]
    if values is None:
        return column
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    used = np.frombuffer(values, np.uint8)[offsets[column.offset] : offsets[column.offset + len(column)]]
    if not _IS_SPECIAL[used].any():
        return column
    special = pc.match_substring_regex(column, f"[{_SPECIAL}]")
    doubled = pc.replace_substring(column, '"', '""')
    return pc.if_else(special, pc.binary_join_element_wise('"', doubled, '"', ""), column)


def _bytes(lines: pa.Array) -> memoryview:
    offsets = np.frombuffer(lines.buffers()[1], np.int32)
    start, stop = int(offsets[lines.offset]), int(offsets[lines.offset + len(lines)])
    return memoryview(lines.buffers()[2])[start:stop]
