"""Writing down in the ledger what a job tells: its stages while it runs, its outcomes at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from airflow_lake_provider.errors import LeaseLost, LedgerUnavailable

if TYPE_CHECKING:
    from airflow_lake_provider.ledger import Claim, File, Outcome

logger = logging.getLogger(__name__)

# Hundreds of small files would make thousands of transactions.
_NOTE_SECONDS = 0.5

Watcher = Callable[["File", str, dict[str, Any]], None]
"""Called as ``watcher(file, stage, numbers)`` while a file is worked on."""


def watch_nothing(file: File, stage: str, numbers: dict[str, Any]) -> None:
    """A watcher for whom nobody looks."""


class Recorder:
    """Notes the stages of claimed files in their events, at most half a second after they happened.

    A thread of its own writes them, so that a slow ledger slows no job.
    """

    def __init__(self, claim: Claim, watch: Watcher) -> None:
        self._claim = claim
        self._watch = watch
        self._files = {file.file_id: file for file in claim.files}
        self._notes: list[tuple[str, str, dict[str, Any]]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._lost: LeaseLost | None = None
        self._thread = threading.Thread(target=self._run, name="stages", daemon=True)

    def stage(self, file_id: str, stage: str, numbers: dict[str, Any]) -> None:
        """A stage of a file is done, or how far it is. Raises LeaseLost once another worker has taken over."""
        if self._lost is not None:
            raise self._lost
        if (file := self._files.get(file_id)) is None:
            return
        self._watch(file, stage, numbers)
        with self._lock:
            self._notes.append((file_id, stage, numbers))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._write()
            if self._lost is not None:
                raise self._lost

    def _run(self) -> None:
        while not self._stop.wait(_NOTE_SECONDS):
            self._write()

    def _write(self) -> None:
        with self._lock:
            notes, self._notes = self._notes, []
        try:
            self._claim.events(notes)
        except LeaseLost as error:
            self._lost = error
        except LedgerUnavailable as error:
            # Progress is worth nothing after an outage; the outcome is what counts.
            logger.warning("%d stages of files were not noted: %s", len(notes), error)


def outcomes(result: Mapping[str, Any]) -> list[Outcome]:
    """The outcomes that an ingest's result names, as the ledger takes them."""
    from airflow_lake_provider.ledger import Counts, Outcome

    ended = []
    for file in result["files"]:
        if file["status"] != "ready":
            ended.append(Outcome(file["file_id"], file["status"], reason=file["reason"], notes=file["notes"]))
            continue
        rows = file["rows"]
        counts = Counts(file["records"], rows["bronze"], rows["silver"], rows["gold"], file["rescued"])
        ended.append(Outcome(file["file_id"], "ready", counts=counts, summary=file["summary"], notes=file["notes"]))
    return ended
