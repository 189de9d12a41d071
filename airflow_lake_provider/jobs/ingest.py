"""One claim of uploaded files, from raw storage into the three tables, with an outcome in the ledger for each file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from airflow_lake_provider.errors import (
    InvalidName,
    RawFileChanged,
    RawFileMissing,
    SettingsError,
    UnreadableFile,
    UnsupportedFile,
)
from airflow_lake_provider.ledger import Claim, Counts, File, Ledger, Outcome
from airflow_lake_provider.medallion.content import check_content
from airflow_lake_provider.medallion.dataset_settings import effective
from airflow_lake_provider.medallion.engine import Earlier, Engine, FileOutcome, FileWork, PresentFile
from airflow_lake_provider.medallion.stored import from_summary, to_summary
from airflow_lake_provider.raw import RawStore

logger = logging.getLogger(__name__)

_NOTE_SECONDS = 0.5

Watcher = Callable[[File, str, dict[str, Any]], None]
"""Called as ``watcher(file, stage, numbers)`` while a file is worked on."""


def present_files(ledger: Ledger, claim_dataset: Any, *, without: Sequence[str] = ()) -> list[PresentFile]:
    """The files that the dataset's tables hold, in upload order, as the engine wants them.

    A file that was ready and waits to be read again is among them: its rows stay until then.
    """
    return [
        PresentFile(file.file_id, from_summary(file.summary or {}), effective(claim_dataset.settings, file.overrides))
        for file in ledger.files(claim_dataset.name, statuses=["ready", "uploaded", "processing"])
        if file.settings_version is not None and file.file_id not in without
    ]


def run_ingest(
    claim: Claim, *, ledger: Ledger, raw: RawStore, engine: Engine, temp_dir: Path, watch: Watcher
) -> list[Outcome]:
    """Take the claimed files in and write how each ended.

    What concerns one file alone (unreadable, not a CSV, gone or changed in raw storage) is that file's outcome. What
    concerns the attempt (no space, storage or catalog away, a lost race) is raised as the LakeError that it is;
    whoever holds the claim gives the files back. Raises LeaseLost where another worker has taken over.
    """
    files = {file.file_id: file for file in claim.files}

    notes: list[tuple[str, str, dict[str, Any]]] = []
    noted = time.monotonic()

    def progress(file_id: str, stage: str, numbers: dict[str, Any]) -> None:
        nonlocal noted
        watch(files[file_id], stage, numbers)
        notes.append((file_id, stage, numbers))
        # Hundreds of small files would make thousands of transactions.
        if time.monotonic() - noted >= _NOTE_SECONDS:
            claim.events(notes)
            notes.clear()
            noted = time.monotonic()

    with ExitStack() as opened, claim.keep_alive():
        outcomes: dict[str, FileOutcome] = {}
        work: list[FileWork] = []
        for file in claim.files:
            try:
                work.append(_prepare(file, claim, raw, temp_dir, opened))
            except UnsupportedFile as error:
                outcomes[file.file_id] = FileOutcome(file.file_id, "quarantined", reason=str(error))
            except (UnreadableFile, RawFileMissing, RawFileChanged, SettingsError, InvalidName) as error:
                outcomes[file.file_id] = FileOutcome(file.file_id, "failed", reason=str(error))
        present = present_files(ledger, claim.dataset, without=list(files))
        left_behind = [file_id for file_id in outcomes if _earlier(files[file_id]) != "nothing"]
        if left_behind:
            engine.take_out(claim.dataset.name, present, left_behind, fence=claim.check)
        for outcome in engine.ingest(claim.dataset.name, present, work, fence=claim.check, progress=progress):
            outcomes[outcome.file_id] = outcome
        claim.events(notes)
        results = [_result(outcomes[file.file_id]) for file in claim.files]
        claim.finish(results)
    for result in results:
        logger.info("file %s of %s is %s", result.file_id, claim.dataset.name, result.status)
    return results


def _earlier(file: File) -> Earlier:
    """What the tables may hold of a file that is read (again)."""
    if file.settings_version is not None:
        return "other"  # it was ready before, and is read with other settings now
    return "same" if file.attempt > 1 else "nothing"


def _prepare(file: File, claim: Claim, raw: RawStore, temp_dir: Path, opened: ExitStack) -> FileWork:
    path = opened.enter_context(raw.opened(file.raw_uri, temp_dir, size=file.size, sha256=file.sha256))
    check_content(path, file.name)
    return FileWork(
        file_id=file.file_id,
        name=file.name,
        path=path,
        size=file.size,
        settings=effective(claim.dataset.settings, file.overrides),
        earlier=_earlier(file),
    )


def _result(outcome: FileOutcome) -> Outcome:
    if outcome.status != "ready":
        return Outcome(outcome.file_id, outcome.status, reason=outcome.reason, notes=outcome.notes)
    return Outcome(
        outcome.file_id,
        "ready",
        counts=Counts(
            records=outcome.records or 0,
            bronze=outcome.rows["bronze"],
            silver=outcome.rows["silver"],
            gold=outcome.rows["gold"],
            rescued=outcome.rescued,
        ),
        summary=to_summary(outcome.columns),
        notes=outcome.notes,
    )
