"""Commands about the embedded services and the demo: db, down, demo."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from airflow_lake_provider.cli.common import Commands, command, open_lake
from airflow_lake_provider.dataset import DatasetName

_DEMO = DatasetName("demo", "shop", "orders")


def register(commands: Commands) -> None:
    """Add the commands."""
    database = command(commands, "db", _database, "The ledger's database.", json_lines=False)
    database.add_argument("action", choices=["upgrade"], help="bring its tables up to date")
    command(commands, "down", _down, "Stop the embedded services; the data stays.", json_lines=False)
    demo = command(commands, "demo", _demo, "Ingest the demo files and print the gold table.", json_lines=False)
    demo.add_argument("--files", type=Path, default=Path("include/demo"), metavar="FOLDER", help="where they are")


def _database(arguments: argparse.Namespace) -> int:
    with open_lake(arguments) as lake:
        lake.ledger.open()
    print("The ledger is up to date.")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    from airflow_lake_provider.ledger.embedded import stop
    from airflow_lake_provider.settings import Settings

    stopped = stop(Settings.from_env().home)
    print("The embedded services are stopped." if stopped else "No embedded service was running.")
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from airflow_lake_provider.cli.common import file_json, user
    from airflow_lake_provider.cli.files import _report
    from airflow_lake_provider.cli.progress import Watch
    from airflow_lake_provider.cli.tables import show
    from airflow_lake_provider.errors import NotFound

    files = sorted(arguments.files.glob("*.csv"))
    if not files:
        raise NotFound(f"There are no demo files in {arguments.files}: run this in a clone of the repository.")
    print(f"Uploading {len(files)} files to dataset {_DEMO} …", flush=True)
    started = time.monotonic()
    with open_lake(arguments) as lake:
        with Watch(quiet=False) as watch:
            uploads = lake.upload(files, _DEMO, who=user())
            done = lake.process(_DEMO, [upload.file.file_id for upload in uploads if upload.file], watch=watch.on_stage)
        arguments.json = False
        failed = _report([file_json(file, holder=file.duplicate_of) for file in done], arguments)
        print(f"\nThe gold table, {time.monotonic() - started:.1f} s after the upload began:\n", flush=True)
        show(lake, _DEMO, "gold")
        print(
            f"\nThe data is in {lake.settings.home}. Look around with: lake files, "
            f"show bronze {_DEMO}, schema gold {_DEMO}; stop with: down."
        )
    return failed
