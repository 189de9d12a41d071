"""What the beginning of a text shows: its dialect, its header, and where its data begins."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace
from typing import Final

from airflow_lake_provider.errors import UnreadableFile, UnsupportedFile
from airflow_lake_provider.medallion.dialect import ReadOptions
from airflow_lake_provider.medallion.reading.blocks import lines_before
from airflow_lake_provider.medallion.reading.detect_header import holds_value
from airflow_lake_provider.medallion.reading.detection import Detection, detect
from airflow_lake_provider.medallion.reading.records import Record, read_records
from airflow_lake_provider.medallion.reading.stream import TextStream

_SAMPLE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Opening:
    """``start`` is the byte of the text and ``line`` the physical line where the records behind the header begin;
    ``complete`` says that the whole text was looked at."""

    found: Detection
    start: int
    line: int
    complete: bool


def find_opening(
    stream: TextStream, options: ReadOptions, name: str, max_record: int, *, keep_spaces: bool = False
) -> Opening:
    """Find out how a text is written from its first MiB, or from more where the first record does not end within it.

    ``keep_spaces`` says that spaces behind delimiters belong to the fields. Raises UnsupportedFile where there is no
    text, or no record within ``max_record`` bytes.
    """
    raw, final = stream.block(b"", _SAMPLE)
    while True:
        if raw.strip(b" \t\r\n"):
            blank = len(raw) - len(raw.lstrip(b"\r\n"))
            text, _ = codecs.utf_8_decode(memoryview(raw)[blank:], "strict", final)
            found = detect(text, complete=final, options=options, name=name)
            if keep_spaces:
                found = replace(found, dialect=replace(found.dialect, skip_initial_space=False))
            leading = found.dialect.preamble + (found.header is not None)
            records = _first_records(text, found, max(leading, 1), final, 1 + lines_before(raw, blank))
            if len(records) > leading and not found.width:
                # Detection looks at a limited text, within which the first record does not end.
                found = _by_first_record(found, records[0].fields, options)
                leading = int(found.header is not None)
            if final or (records and len(records) >= leading):
                if not found.width:
                    raise UnreadableFile(
                        f"{name} has nothing behind its preamble of {found.dialect.preamble} records: set a smaller "
                        "preamble."
                    )
                return _opening(raw, blank, text, found, records[:leading], final)
        elif final:
            raise UnsupportedFile(
                f"{name} is empty: it holds nothing but blank lines, and a delimited text file was expected."
            )
        if len(raw) > max_record:
            raise UnsupportedFile(
                f"{name} cannot be read: its first record does not end within {max_record:,} bytes; check its quoting, "
                "or raise the limit max_record_bytes."
            )
        raw, final = stream.block(raw, len(raw) * 7)


def _by_first_record(found: Detection, fields: list[str], options: ReadOptions) -> Detection:
    has_header = options.header if options.header is not None else not holds_value(fields)
    return replace(
        found,
        dialect=replace(found.dialect, header=has_header, preamble=0),
        header=list(fields) if has_header else None,
        width=len(fields),
    )


def _first_records(text: str, found: Detection, count: int, final: bool, first_line: int) -> list[Record]:
    records: list[Record] = []
    for record in read_records(text, found.dialect, width=found.width, final=final, first_line=first_line):
        records.append(record)
        if len(records) == count:
            break
    return records


def _opening(raw: bytearray, blank: int, text: str, found: Detection, leading: list[Record], complete: bool) -> Opening:
    """``blank`` is the length of the empty lines in front of ``text``."""
    if found.header is not None and leading and leading[-1].fields != found.header:
        found = replace(found, header=leading[-1].fields, width=len(leading[-1].fields))
    start = blank + (len(text[: leading[-1].end].encode()) if leading else 0)
    above = lines_before(raw, blank)
    if above:
        doubts = [replace(doubt, line=doubt.line and doubt.line + above) for doubt in found.doubts]
        found = replace(found, doubts=doubts)
    return Opening(found, start, 1 + lines_before(raw, start), complete)
