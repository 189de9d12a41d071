"""Commands about files: ingest, reprocess, files, events."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.cli.common import (
    Commands,
    add_engine,
    command,
    file_json,
    open_lake,
    print_columns,
    print_json,
    user,
)
from airflow_lake_provider.dataset import DatasetName

if TYPE_CHECKING:
    from airflow_lake_provider.ledger import File

# Option → key of the settings; the help says what it takes.
_OVERRIDES = {
    "delimiter": "the field delimiter: a text, or 'tab', 'comma', …",
    "encoding": "the character encoding, such as cp1252",
    "header": "whether the first record holds the column names (yes or no)",
    "quote": "the quote character, or 'none'",
    "escape": "the character before a quote inside quotes, or 'none'",
    "preamble": "how many records stand before the header",
    "null_tokens": "texts that mean null, such as NA,n/a",
    "decimal_comma": "whether ',' is the decimal sign (yes or no)",
    "date_order": "the order of day and month: dmy or mdy",
    "contract": "evolve, freeze or reject_row",
    "types": 'declared types: {"amount": "double"} or amount=double,when=date',
}


def register(commands: Commands) -> None:
    """Add the commands."""
    ingest = command(commands, "ingest", _ingest, "Upload files and turn them into tables, as one batch.")
    ingest.add_argument("files", metavar="FILE", nargs="+", type=Path)
    for part in ("vendor", "project", "folder"):
        ingest.add_argument(f"--{part}", required=True, metavar=part[0].upper())
    add_overrides(ingest)
    add_engine(ingest)

    again = command(commands, "reprocess", _reprocess, "Read files again, from raw storage, with the settings of now.")
    again.add_argument("file_ids", metavar="FILE_ID", nargs="+")
    add_overrides(again)
    add_engine(again)

    listed = command(commands, "files", _files, "List files, oldest first.")
    listed.add_argument("--dataset", metavar="V/P/F", help="of one dataset only")

    events = command(commands, "events", _events, "What happened to one file.")
    events.add_argument("file_id", metavar="FILE_ID")


def add_overrides(added: argparse.ArgumentParser) -> None:
    group = added.add_argument_group("settings for these files alone (see docs/dataset-settings.md)")
    for key, text in _OVERRIDES.items():
        group.add_argument(f"--{key.replace('_', '-')}", dest=f"override_{key}", metavar="VALUE", help=text)


def given_overrides(arguments: argparse.Namespace) -> dict[str, Any] | None:
    given = {key: value for key in _OVERRIDES if (value := getattr(arguments, f"override_{key}")) is not None}
    if not given:
        return None
    from airflow_lake_provider.medallion.dataset_settings import parse_assignments

    return {
        key: value
        for key, value in parse_assignments([f"{key}={value}" for key, value in given.items()]).items()
        if value is not None
    }


def _ingest(arguments: argparse.Namespace) -> int:
    from airflow_lake_provider.cli.progress import Watch

    dataset = DatasetName(arguments.vendor, arguments.project, arguments.folder)
    overrides = given_overrides(arguments)
    with open_lake(arguments) as lake, Watch(quiet=arguments.json) as watch:
        uploads = lake.upload(arguments.files, dataset, overrides=overrides, who=user())
        ids = [upload.file.file_id for upload in uploads if upload.file is not None]
        done = {file.file_id: file for file in lake.process(dataset, ids, watch=watch.on_stage)}
    lines = []
    for upload in uploads:
        if upload.file is None:
            lines.append(_refused(upload.path.name, upload.reason))
        else:
            file = done[upload.file.file_id]
            lines.append(file_json(file, holder=file.duplicate_of if file.status == "duplicate" else None))
    return _report(lines, arguments)


def _refused(name: str, reason: str | None) -> dict[str, Any]:
    return {
        "file_id": None,
        "file": name,
        "status": "failed",
        "reason": reason,
        "records": None,
        "rows": {"bronze": 0, "silver": 0, "gold": 0},
        "rescued": 0,
        "notes": [],
    }


def _report(lines: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> int:
    for line in lines:
        if arguments.json:
            print_json(line)
            continue
        rows = line["rows"]
        text = f"{line['file']}: {line['status']}"
        if line["status"] == "ready":
            text += (
                f", {line['records']:,} records; rows: bronze {rows['bronze']:,}, silver {rows['silver']:,}, "
                f"gold +{rows['gold']:,}  ({line['file_id']})"
            )
        elif line["status"] == "duplicate":
            text += f" of {line['file_id']}"
        else:
            text += f" ({line['file_id']})" if line["file_id"] else ""
        print(text + (f": {line['reason']}" if line["reason"] else ""))
        for note in line["notes"]:
            print(f"  note: {note}")
    return 0 if all(line["status"] in ("ready", "duplicate") for line in lines) else 1


def _reprocess(arguments: argparse.Namespace) -> int:
    from airflow_lake_provider.cli.progress import Watch

    overrides = given_overrides(arguments)
    with open_lake(arguments) as lake, Watch(quiet=arguments.json) as watch:
        files = lake.reread(arguments.file_ids, overrides=overrides, who=user(), watch=watch.on_stage)
    return _report([file_json(file) for file in files], arguments)


def _files(arguments: argparse.Namespace) -> int:
    dataset = DatasetName.parse(arguments.dataset) if arguments.dataset else None
    with open_lake(arguments) as lake:
        files = lake.ledger.files(dataset)
    if arguments.json:
        for file in files:
            print_json(_file_line(file))
        return 0
    rows: list[Sequence[object]] = [("FILE_ID", "DATASET", "FILE", "STATUS", "RECORDS", "UPLOADED")]
    for file in files:
        records = file.counts.records if file.counts else None
        rows.append(
            (file.file_id, file.dataset, file.name, file.status, records, f"{file.uploaded_at:%Y-%m-%d %H:%M:%S}")
        )
    print_columns(rows)
    return 0


def _file_line(file: File) -> dict[str, Any]:
    return {
        **file_json(file),
        "dataset": str(file.dataset),
        "size": file.size,
        "sha256": file.sha256,
        "duplicate_of": file.duplicate_of,
        "attempt": file.attempt,
        "overrides": dict(file.overrides),
        "uploaded_at": file.uploaded_at.isoformat(),
        "updated_at": file.updated_at.isoformat(),
    }


def _events(arguments: argparse.Namespace) -> int:
    with open_lake(arguments) as lake:
        lake.ledger.file(arguments.file_id)
        events = lake.ledger.events(arguments.file_id)
    if arguments.json:
        for event in events:
            print_json(
                {
                    "at": event.at.isoformat(),
                    "actor": event.actor,
                    "who": event.who,
                    "from": event.from_status,
                    "to": event.to_status,
                    "stage": event.stage,
                    "attempt": event.attempt,
                    "data": dict(event.data),
                }
            )
        return 0
    print_columns(
        [("AT", "STATUS", "STAGE", "ACTOR", "DATA")]
        + [
            (
                f"{event.at:%Y-%m-%d %H:%M:%S}",
                event.to_status,
                event.stage,
                event.actor,
                ", ".join(f"{key} {value}" for key, value in event.data.items()),
            )
            for event in events
        ]
    )
    return 0
