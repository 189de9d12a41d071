"""What a job does: its document through the engine, and a result that says how each file ended."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import (
    InvalidName,
    RawFileChanged,
    RawFileMissing,
    SettingsError,
    UnreadableFile,
    UnsupportedFile,
)
from airflow_lake_provider.jobs.document import JobDocument, JobFile
from airflow_lake_provider.jobs.present import present

if TYPE_CHECKING:
    from airflow_lake_provider.ledger import Lease
    from airflow_lake_provider.medallion.engine import FileOutcome, FileWork, Progress
    from airflow_lake_provider.services import Services


def no_progress(file_id: str, stage: str, numbers: dict[str, Any]) -> None:
    """Progress of a job without stages of files: a removal or a rebuild."""


def run_job(document: JobDocument, services: Services, lease: Lease, progress: Progress) -> dict[str, Any]:
    """Do what the document says under ``lease``, which is checked before every commit, and give the job's result.

    ``{"files": [...]}`` with an outcome for each file of an ingest, nothing for a removal, ``{"rows": {...}}`` by layer
    for a rebuild. What concerns one file alone (unreadable, not a CSV, gone or changed in raw storage) is that file's
    outcome; what concerns the whole (no space, storage or catalog away, a lost race, LeaseLost) is raised.
    """
    with services.fenced(lease):
        match document.kind:
            case "ingest":
                return {"files": _ingest(document, services, lease, progress)}
            case "take_out":
                gone = [file.file_id for file in document.files]
                services.engine.take_out(document.dataset, present(document, services.ledger), gone, fence=lease.check)
                return {}
            case "rebuild":
                rows = services.engine.rebuild(document.dataset, present(document, services.ledger), fence=lease.check)
                return {"rows": rows}


def _ingest(document: JobDocument, services: Services, lease: Lease, progress: Progress) -> list[dict[str, Any]]:
    from airflow_lake_provider.medallion.engine import FileOutcome

    outcomes: dict[str, FileOutcome] = {}
    work: list[FileWork] = []
    with ExitStack() as opened:
        for file in document.files:
            try:
                work.append(_prepare(file, document, services, opened))
            except UnsupportedFile as error:
                outcomes[file.file_id] = FileOutcome(file.file_id, "quarantined", reason=str(error))
            except (UnreadableFile, RawFileMissing, RawFileChanged, SettingsError, InvalidName) as error:
                outcomes[file.file_id] = FileOutcome(file.file_id, "failed", reason=str(error))
        there = present(document, services.ledger)
        left_behind = [f.file_id for f in document.files if f.file_id in outcomes and f.earlier != "nothing"]
        if left_behind:
            services.engine.take_out(document.dataset, there, left_behind, fence=lease.check)
        for outcome in services.engine.ingest(document.dataset, there, work, fence=lease.check, progress=progress):
            outcomes[outcome.file_id] = outcome
    return [_result(outcomes[file.file_id]) for file in document.files]


def _prepare(file: JobFile, document: JobDocument, services: Services, opened: ExitStack) -> FileWork:
    from airflow_lake_provider.medallion.content import check_content
    from airflow_lake_provider.medallion.dataset_settings import effective
    from airflow_lake_provider.medallion.engine import FileWork

    stored = services.raw.opened(file.raw_uri, services.workspace.path, size=file.size, sha256=file.sha256)
    path = opened.enter_context(stored)
    check_content(path, file.name)
    return FileWork(
        file_id=file.file_id,
        name=file.name,
        path=path,
        size=file.size,
        settings=effective(document.settings, file.overrides),
        earlier=file.earlier,
    )


def _result(outcome: FileOutcome) -> dict[str, Any]:
    from airflow_lake_provider.medallion.stored import to_summary

    ended: dict[str, Any] = {
        "file_id": outcome.file_id,
        "status": outcome.status,
        "reason": outcome.reason,
        "notes": outcome.notes,
    }
    if outcome.status == "ready":
        ended |= {
            "records": outcome.records or 0,
            "rows": outcome.rows,
            "rescued": outcome.rescued,
            "summary": to_summary(outcome.columns),
        }
    return ended
