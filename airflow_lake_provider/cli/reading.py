"""Commands about files on their own, without a lake: inspect, convert."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.cli.common import Commands, command, print_columns, print_json
from airflow_lake_provider.cli.files import add_overrides, given_overrides

if TYPE_CHECKING:
    from airflow_lake_provider.medallion.inspection import Inspection
    from airflow_lake_provider.medallion.types import AlmostTyped


def register(commands: Commands) -> None:
    """Add the commands."""
    inspect = command(commands, "inspect", _inspect, "Say how a file is read and what is in doubt; write nothing.")
    inspect.add_argument("file", metavar="FILE", type=Path)
    add_overrides(inspect)

    convert = command(commands, "convert", _convert, "Write files as clean CSV: UTF-8, comma, LF.")
    convert.add_argument("files", metavar="FILE", nargs="+", type=Path)
    convert.add_argument("--out", required=True, metavar="DIR", type=Path)
    add_overrides(convert)


def _inspect(arguments: argparse.Namespace) -> int:
    from airflow_lake_provider.medallion.dataset_settings import effective
    from airflow_lake_provider.medallion.inspection import inspect_file
    from airflow_lake_provider.medallion.reading import Limits
    from airflow_lake_provider.settings import Settings

    settings = Settings.from_env()
    path: Path = arguments.file
    found = inspect_file(
        path,
        effective({}, given_overrides(arguments) or {}),
        name=path.name,
        temp_dir=settings.temp_dir,
        limits=Limits(max_bytes=settings.max_decompressed_bytes, max_ratio=settings.max_compression_ratio),
        memory_limit=f"{settings.duckdb_memory_limit}B",
        threads=settings.duckdb_threads,
    )
    if arguments.json:
        print_json(_inspection_json(path.name, found))
    else:
        _print_inspection(path.name, found)
    return 0


def _inspection_json(name: str, found: Inspection) -> dict[str, Any]:
    dialect = found.dialect
    return {
        "file": name,
        "encoding": dialect.encoding,
        "dialect": {
            "delimiter": dialect.delimiter,
            "quote": dialect.quote,
            "escape": dialect.escape,
            "line_end": dialect.line_end,
            "skip_initial_space": dialect.skip_initial_space,
        },
        "header": [column.header for column in found.columns] if dialect.header else None,
        "preamble": found.preamble,
        "records": found.records,
        "rescued": found.rescued,
        "columns": [
            {"name": column.name, "type": str(column.type), "doc": column.header, "values": column.values}
            for column in found.columns
        ],
        "doubts": [
            {
                "code": doubt.code,
                "message": doubt.message,
                "setting": doubt.setting,
                "line": doubt.line,
                "count": doubt.count,
            }
            for doubt in found.doubts
        ]
        + [
            {
                "code": "almost_typed",
                "message": _almost(almost),
                "setting": almost.setting,
                "line": None,
                "count": almost.exception_count,
                "column": almost.column,
                "type": str(almost.type),
                "exceptions": [{"text": text, "count": count} for text, count in almost.exceptions],
            }
            for almost in found.almost
        ],
    }


def _almost(almost: AlmostTyped) -> str:
    if not almost.exceptions:
        return f"{almost.column} would be {almost.type} with {almost.setting}"
    exceptions = ", ".join(f"{count:,} × `{text}`" for text, count in almost.exceptions)
    others = almost.exception_count - sum(count for _, count in almost.exceptions)
    more = f" and {others:,} more" if others > 0 else ""
    hint = f" (set {almost.setting})" if almost.setting else ""
    return f"{almost.column} would be {almost.type} but for {exceptions}{more}{hint}"


def _print_inspection(name: str, found: Inspection) -> None:
    dialect = found.dialect
    ends = {"\n": "LF", "\r\n": "CRLF", "\r": "CR"}
    parts = [
        f"encoding {dialect.encoding}",
        "one column" if dialect.delimiter is None else f"delimiter {dialect.delimiter!r}",
        "no quotes" if dialect.quote is None else f"quote {dialect.quote}",
        *([f"escape {dialect.escape!r}"] if dialect.escape else []),
        f"line ends {ends.get(dialect.line_end, 'mixed')}",
        "a header" if dialect.header else "no header",
        *([f"{found.preamble} records before it"] if found.preamble else []),
    ]
    print(f"{name}: {', '.join(parts)}; {found.records:,} records")
    print_columns(
        [("COLUMN", "TYPE", "VALUES", "HEADER"), *((c.name, c.type, f"{c.values:,}", c.header) for c in found.columns)]
    )
    for doubt in found.doubts:
        place = f"line {doubt.line}: " if doubt.line else ""
        setting = f" (setting: {doubt.setting})" if doubt.setting else ""
        print(f"doubt: {place}{doubt.message}{setting}")
    for almost in found.almost:
        print(f"doubt: {_almost(almost)}")


def _convert(arguments: argparse.Namespace) -> int:
    from airflow_lake_provider.medallion.dataset_settings import effective
    from airflow_lake_provider.medallion.reading.convert import ConvertResult, convert_files

    def tell(result: ConvertResult) -> None:
        if arguments.json:
            print_json(
                {
                    "file": result.path.name,
                    "out": str(result.output) if result.output else None,
                    "records": None if result.error else result.counts.records,
                    "reason": str(result.error) if result.error else None,
                }
            )
        elif result.error is not None:
            print(f"lake: {result.error}", file=sys.stderr)

    options = effective({}, given_overrides(arguments) or {}).read_options
    results = convert_files(arguments.files, arguments.out, options=options, on_result=tell)
    done = sum(result.error is None for result in results)
    if not arguments.json:
        print(f"{done:,} of {len(results):,} files written to {arguments.out}")
    return 0 if done == len(results) else 1
