"""Commands about datasets: settings, rebuild."""

from __future__ import annotations

import argparse

from airflow_lake_provider.cli.common import (
    Commands,
    add_dataset,
    add_engine,
    command,
    file_json,
    open_lake,
    print_json,
    user,
)


def register(commands: Commands) -> None:
    """Add the commands."""
    settings = command(commands, "settings", _settings, "Show a dataset's settings, or change them and read again.")
    add_dataset(settings)
    settings.add_argument("changes", metavar="KEY=VALUE", nargs="*", help="KEY= removes one")

    rebuild = command(commands, "rebuild", _rebuild, "Compute silver and gold anew from bronze.")
    add_dataset(rebuild)
    add_engine(rebuild)


def _settings(arguments: argparse.Namespace) -> int:
    from airflow_lake_provider.cli.progress import Watch
    from airflow_lake_provider.medallion.dataset_settings import check, parse_assignments

    with open_lake(arguments) as lake:
        files = []
        if arguments.changes:
            current = dict(lake.ledger.ensure_dataset(arguments.dataset).settings)
            changes = parse_assignments(arguments.changes, current)
            check({**current, **changes})
            with Watch(quiet=arguments.json) as watch:
                files = lake.change_settings(arguments.dataset, changes, who=user(), watch=watch.on_stage)
        settings = dict(lake.ledger.dataset(arguments.dataset).settings)
    if arguments.json:
        print_json(settings)
    else:
        for key, value in sorted(settings.items()):
            print(f"{key} = {value}")
    failed = [file for file in files if file.status != "ready"]
    for file in failed:
        line = file_json(file)
        if arguments.json:
            print_json(line)
        else:
            print(f"{file.name}: {file.status}: {file.reason}")
    return 1 if failed else 0


def _rebuild(arguments: argparse.Namespace) -> int:
    with open_lake(arguments) as lake:
        rows = lake.rebuild(arguments.dataset)
    if arguments.json:
        print_json({"dataset": str(arguments.dataset), "rows": rows})
    else:
        print(f"{arguments.dataset}: " + ", ".join(f"{layer} {count:,} rows" for layer, count in rows.items()))
    return 0
