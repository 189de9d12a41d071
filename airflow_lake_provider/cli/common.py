"""What several commands share: opening the lake, arguments, and lines of JSON."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.dataset import LAYERS, DatasetName

if TYPE_CHECKING:
    from airflow_lake_provider.lake import Lake
    from airflow_lake_provider.ledger import File

Commands = Any
"""The object of ``argparse`` that commands are added to; its class is private."""


def command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], summary: str, *, json_lines: bool = True
) -> argparse.ArgumentParser:
    """Add a command; ``json_lines`` gives it the option ``--json``."""
    added: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)
    added.set_defaults(run=run)
    if json_lines:
        added.add_argument("--json", action="store_true", help="one JSON value a line")
    return added


def add_engine(added: argparse.ArgumentParser) -> None:
    """Add ``--engine``."""
    added.add_argument("--engine", metavar="NAME", help="the engine that computes (default: LAKE_ENGINE)")


def add_layer(added: argparse.ArgumentParser) -> None:
    """Add the arguments that name a table."""
    added.add_argument("layer", choices=LAYERS)
    add_dataset(added)


def add_dataset(added: argparse.ArgumentParser) -> None:
    """Add the argument that names a dataset."""
    added.add_argument("dataset", metavar="VENDOR/PROJECT/FOLDER", type=dataset_argument)


def dataset_argument(text: str) -> DatasetName:
    """Read ``V/P/F``; a wrong name is a wrong use of the command."""
    from airflow_lake_provider.errors import InvalidName

    try:
        return DatasetName.parse(text)
    except InvalidName as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def open_lake(arguments: argparse.Namespace) -> Lake:
    """The lake of the settings, with the warnings that they give."""
    from airflow_lake_provider.lake import Lake

    lake = Lake(engine=getattr(arguments, "engine", None))
    for warning in lake.settings.warnings:
        print(f"lake: {warning}", file=sys.stderr)
    return lake


def user() -> str:
    """Who runs the command, for the history of a file."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def print_json(value: object) -> None:
    """One JSON value on a line of its own, letters as they are."""
    print(json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=str), flush=True)


def print_columns(rows: Iterable[Iterable[object]]) -> None:
    """Lines of text in aligned columns."""
    texts = [["" if value is None else str(value) for value in row] for row in rows]
    if not texts:
        return
    widths = [max(len(row[n]) for row in texts) for n in range(len(texts[0]))]
    for row in texts:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def file_json(file: File, *, holder: str | None = None) -> dict[str, Any]:
    """The line for one file; a duplicate goes by the id of the file that has its bytes."""
    counts = file.counts
    return {
        "file_id": holder or file.file_id,
        "file": file.name,
        "status": file.status,
        "reason": file.reason,
        "records": counts.records if counts else None,
        "rows": {
            "bronze": counts.bronze if counts else 0,
            "silver": counts.silver if counts else 0,
            "gold": counts.gold if counts else 0,
        },
        "rescued": counts.rescued if counts else 0,
        "notes": list(file.notes or ()),
    }
