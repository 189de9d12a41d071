"""Commands about tables: show, schema."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_lake_provider.cli.common import Commands, add_layer, command, open_lake, print_columns, print_json
from airflow_lake_provider.dataset import DatasetName, Layer

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_lake_provider.lake import Lake
    from airflow_lake_provider.medallion.engine import TableColumn

Cell = str | list[str | None] | None


def register(commands: Commands) -> None:
    """Add the commands."""
    shown = command(commands, "show", _show, "Print the rows of a table.")
    add_layer(shown)
    shown.add_argument("--limit", type=_positive, metavar="N", help="at most so many rows (default: all)")
    _add_columns(shown)

    schema = command(commands, "schema", _schema, "Print the columns of a table.")
    add_layer(schema)
    _add_columns(schema)


def _add_columns(added: argparse.ArgumentParser) -> None:
    added.add_argument("--columns", choices=["data", "all"], default="data", help="'all' adds those that begin with _")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError("a whole number is expected")
    return int(text)


def rows(
    lake: Lake, dataset: DatasetName, layer: Layer, *, system: bool = False, limit: int | None = None
) -> Iterator[list[Cell]]:
    """The rows of a layer as canonical text, null as None."""
    data, own = lake.schema(dataset, layer)
    columns = [*data, *own] if system else data
    for batch in lake.rows(dataset, layer, system=system, limit=limit):
        yield from zip_rows(batch, columns)


def zip_rows(batch: pa.RecordBatch, columns: list[TableColumn]) -> Iterator[list[Cell]]:
    """The rows of one batch as canonical text."""
    from airflow_lake_provider.medallion.types import ColumnType, canonical_values

    if not columns:
        yield from ([] for _ in range(batch.num_rows))
        return
    texts: list[list[Cell]] = [
        list(array.to_pylist())
        if column.type == "list<string>"
        else list(canonical_values(array, ColumnType.parse(column.type)))
        for array, column in zip(batch.columns, columns, strict=True)
    ]
    yield from (list(row) for row in zip(*texts, strict=True))


def show(lake: Lake, dataset: DatasetName, layer: Layer, *, system: bool = False, limit: int | None = None) -> None:
    """Print a layer: a table on a terminal, CSV elsewhere."""
    data, own = lake.schema(dataset, layer)
    names = [column.name for column in ([*data, *own] if system else data)]
    lines = rows(lake, dataset, layer, system=system, limit=limit)
    if not sys.stdout.isatty():
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(lines)
        sys.stdout.flush()
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*names)
    for line in lines:
        table.add_row(*("" if cell is None else str(cell) for cell in line))
    Console().print(table)


def _show(arguments: argparse.Namespace) -> int:
    system = arguments.columns == "all"
    with open_lake(arguments) as lake:
        if arguments.json:
            for row in rows(lake, arguments.dataset, arguments.layer, system=system, limit=arguments.limit):
                print_json(row)
        else:
            show(lake, arguments.dataset, arguments.layer, system=system, limit=arguments.limit)
    return 0


def _schema(arguments: argparse.Namespace) -> int:
    with open_lake(arguments) as lake:
        data, own = lake.schema(arguments.dataset, arguments.layer)
    columns = [*data, *own] if arguments.columns == "all" else data
    if arguments.json:
        print_json([{"name": column.name, "type": column.type, "doc": column.doc} for column in columns])
    else:
        print_columns([("COLUMN", "TYPE", "HEADER"), *((c.name, c.type, c.doc) for c in columns)])
    return 0
