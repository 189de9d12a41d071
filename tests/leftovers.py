"""What a lake must not have once all its work is done: files that nothing names, work in progress, leases, gaps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from pyiceberg.table import Table

from airflow_lake_provider.dataset import LAYERS, DatasetName
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.ledger import File
from airflow_lake_provider.medallion.embedded.parquet import local_path
from airflow_lake_provider.medallion.embedded.tables import live_files, load


def wrong_events(lake: Lake, files: Sequence[File]) -> Iterator[str]:
    for file in files:
        status, attempt = None, 0
        for event in lake.ledger.events(file.file_id):
            if event.from_status != status or (event.attempt or 0) < attempt:
                yield f"event {event.id} of {file.name} comes from {event.from_status}, after {status}"
            status, attempt = event.to_status, event.attempt or 0
        if (status, attempt) != (file.status, file.attempt):
            yield f"the last event of {file.name} says {status} at attempt {attempt}: it is {file.status}"


def named(table: Table) -> set[Path]:
    """Every file that a table's metadata name; written without the code that decides by it what may be deleted."""
    found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    found.update(snapshot.manifest_list for snapshot in table.snapshots())
    manifests = {each.manifest_path: each for snapshot in table.snapshots() for each in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        found.update([path, *(entry.data_file.file_path for entry in entries)])
    return {local_path(uri) for uri in found}


def left_in_warehouse(lake: Lake, datasets: Sequence[DatasetName]) -> Iterator[str]:
    place = Path(lake.settings.warehouse)
    there = {path for path in place.rglob("*") if path.is_file()}
    known: set[Path] = set()
    for dataset, layer in itertools.product(datasets, LAYERS):
        table = load(lake.catalog, dataset, layer)
        if table is not None:
            known |= named(table)
            live = {local_path(data_file.file_path) for data_file in live_files(table)}
            yield from (f"the data file {path.relative_to(place)} is gone" for path in live - there)
    yield from (f"no table names {path.relative_to(place)}" for path in sorted(there - known))


def left_in_raw(lake: Lake, files: Sequence[File]) -> Iterator[str]:
    place = Path(lake.settings.raw)
    known = {Path(file.raw_uri) for file in files}
    there = {path for path in place.rglob("*") if not path.is_dir() or not any(path.iterdir())}
    yield from (f"the upload {path.name} is gone" for path in sorted(known - there))
    yield from (f"no file of the ledger is {path.relative_to(place)}" for path in sorted(there - known))


def left_elsewhere(lake: Lake, connection: psycopg.Connection[Any]) -> Iterator[str]:
    temp = lake.settings.temp_dir
    mine = {lake.workspace.path}  # whoever makes a folder here removes those of processes that died
    left = set(temp.iterdir()) - mine
    yield from (f"{path.name} is in the temporary folder" for path in left)
    strange = {path.name for path in lake.settings.home.iterdir()} - {"raw", "warehouse", "tmp"}
    yield from (f"{name} is in the lake's home" for name in sorted(strange))
    held = connection.execute(
        "SELECT 'the dataset' FROM lake.datasets WHERE lease_token IS NOT NULL "
        "UNION ALL SELECT name FROM lake.files WHERE lease_token IS NOT NULL"
    ).fetchall()
    yield from (f"{name} is still leased" for (name,) in held)
    announced = connection.execute("SELECT raw_uri FROM lake.uploads").fetchall()
    yield from (f"{uri} is still announced" for (uri,) in announced)
