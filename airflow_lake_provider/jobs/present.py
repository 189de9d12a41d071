"""The files that a dataset's tables hold, from the ledger to the engine: together at once, one by one when asked."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import CommitConflict

if TYPE_CHECKING:
    from airflow_lake_provider.jobs.document import JobDocument
    from airflow_lake_provider.ledger import Dataset, File, Ledger
    from airflow_lake_provider.medallion.engine import PresentFile
    from airflow_lake_provider.medallion.present import Joined, Present


def join_present(ledger: Ledger, dataset: Dataset, *, without: Collection[str]) -> Joined:
    """What the files in the dataset's tables say together, but for the files ``without``.

    Of thousands of files only those are looked at that have come, gone or changed since the last time.
    """
    from airflow_lake_provider.medallion.present import Joined

    joined = Joined()
    parts = ledger.parts_in_tables(dataset, without=without)
    changed = []
    for place, part in enumerate(parts):
        mine = Joined() if part.value is None else Joined.from_dict(part.value)
        if part.files:
            mine.add(_present_files(part.files, dataset.settings))
            parts[place] = part.made(mine.to_dict())
            changed.append(part.last)
        joined.merge(mine)
    if changed:
        ledger.keep_parts(dataset, parts, changed)
    return joined


def present(document: JobDocument, ledger: Ledger) -> Present:
    """The files that a document's dataset holds beside those to work on."""
    from airflow_lake_provider.medallion.present import Joined, Present

    joined = Joined.from_dict(document.present)

    def load() -> list[PresentFile]:
        dataset = ledger.dataset(document.dataset)
        files = ledger.in_tables(dataset, without=[file.file_id for file in document.files])
        found = list(_present_files(files, document.settings))
        if Joined(found) != joined:
            raise CommitConflict(
                f"Files of dataset {document.dataset} came or went while a job worked on it; nothing was "
                "committed, the work starts over on the new state."
            )
        return found

    return Present(joined, load)


def _present_files(files: Iterable[File], settings: Mapping[str, Any]) -> Iterable[PresentFile]:
    from airflow_lake_provider.medallion.dataset_settings import EffectiveSettings, effective
    from airflow_lake_provider.medallion.engine import PresentFile
    from airflow_lake_provider.medallion.stored import from_summary

    known: dict[str, EffectiveSettings] = {}
    for file in files:
        # Thousands of files have the same few overrides, if any.
        key = json.dumps(file.overrides, sort_keys=True) if file.overrides else ""
        if key not in known:
            known[key] = effective(settings, file.overrides)
        yield PresentFile(file.file_id, from_summary(file.summary or {}), known[key])
