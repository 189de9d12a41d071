"""Claiming work from the ledger, having it done as jobs, and writing down how it ended."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from airflow_lake_provider.errors import LakeError, LeaseLost, LedgerUnavailable
from airflow_lake_provider.jobs.attempts import Attempts
from airflow_lake_provider.jobs.document import ingest_document, take_out_document
from airflow_lake_provider.jobs.recording import Recorder, Watcher, outcomes, watch_nothing
from airflow_lake_provider.jobs.runners import Runner
from airflow_lake_provider.jobs.work import no_progress
from airflow_lake_provider.uploads import remove_abandoned

if TYPE_CHECKING:
    from airflow_lake_provider.dataset import DatasetName
    from airflow_lake_provider.ledger import Claim
    from airflow_lake_provider.services import Services

logger = logging.getLogger(__name__)


# How long a worker that has met trouble waits before it looks for work again.
_TROUBLE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 1.0
# How often an idle worker looks for what uploads that died have left.
_TIDY_SECONDS: Final = 600.0

Until = Literal["once", "idle", "stopped"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One look for work: the dataset that was worked on, or None; how many files ended how; and what makes it useless
    to go on there."""

    dataset: DatasetName | None
    ended: Counter[str] = field(default_factory=Counter)
    trouble: LakeError | None = None


class Worker:
    """Takes one claim after the other. ``stop`` ends the job under way and hands its files back."""

    def __init__(self, services: Services, runner: Runner, *, watch: Watcher = watch_nothing) -> None:
        self._services = services
        self._runner = runner
        self._watch = watch
        self._attempts: dict[DatasetName, Attempts] = {}
        self._stop = threading.Event()
        self._why = "the worker was stopped"
        self._tidy_again = 0.0

    def stop(self, reason: str) -> None:
        """Take no more work, and end the job under way; may be called from a signal handler or another thread."""
        self._why = reason
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stop.is_set()

    def run(
        self, until: Until, *, dataset: DatasetName | None = None, report: Callable[[Turn], None] = lambda turn: None
    ) -> LakeError | None:
        """Work ``once``, until nothing waits or is being worked on (``idle``), or until ``stop``.

        ``report`` is told of every turn that had work. Returns what made it useless to go on, which ends only the
        first two; the third waits and looks again. Raises LedgerUnavailable under the same condition.
        """
        wakeups: Iterator[object] | None = None
        while not self.stopping:
            try:
                turn = self.turn(dataset=dataset)
                if turn.dataset is not None:
                    report(turn)
                if until == "once" or (until == "idle" and turn.trouble is not None):
                    return turn.trouble
                if turn.trouble is not None:
                    self._stop.wait(_TROUBLE_SECONDS)
                if turn.dataset is not None:
                    continue
                self._tidy()
                if until == "idle" and not self._services.ledger.unfinished(dataset):
                    return None
                if wakeups is None:
                    wakeups = iter(self._services.ledger.listen(poll=_POLL_SECONDS))
                next(wakeups)
            except LedgerUnavailable as error:
                if until != "stopped":
                    raise
                logger.error("%s", error)
                wakeups = None
                self._stop.wait(_TROUBLE_SECONDS)
        return None

    def _tidy(self) -> None:
        """What is to be done now and then while there is no other work."""
        if time.monotonic() >= self._tidy_again:
            self._tidy_again = time.monotonic() + _TIDY_SECONDS
            remove_abandoned(self._services)

    def turn(self, *, dataset: DatasetName | None = None, file_ids: Collection[str] | None = None) -> Turn:
        """Claim and do one batch of work, of one dataset where given. Raises LedgerUnavailable."""
        settings = self._services.settings
        claim = self._services.ledger.claim(
            self._services.worker,
            dataset=dataset,
            file_ids=file_ids,
            max_files=settings.batch_max_files,
            max_bytes=settings.batch_max_bytes,
            lease_seconds=settings.lease_seconds,
        )
        return Turn(None) if claim is None else self.do(claim)

    def do(self, claim: Claim) -> Turn:
        """Do what was claimed, and let go of it. Raises LedgerUnavailable."""
        name = claim.dataset.name
        with ExitStack() as held:
            held.enter_context(claim)
            try:
                return self._attempt(claim)
            except LeaseLost as error:
                logger.warning("%s", error)
                return Turn(name)
            except LedgerUnavailable:
                held.pop_all()  # the time for reaching the ledger is used up: the lease ends by itself
                raise

    def _attempt(self, claim: Claim) -> Turn:
        name = claim.dataset.name
        attempts = self._attempts.setdefault(name, Attempts(self._services.settings.max_attempts, self._stop.wait))
        try:
            with claim.keep_alive():
                ended = self._take_out(claim) if claim.kind == "removal" else self._ingest(claim)
        except (LeaseLost, LedgerUnavailable):
            raise
        except LakeError as error:
            return Turn(name, trouble=None if attempts.failed(claim, error) else error)
        attempts.succeeded(claim)
        return Turn(name, ended)

    def _ingest(self, claim: Claim) -> Counter[str]:
        with Recorder(claim, self._watch) as recorder:
            document = ingest_document(claim, self._services.ledger)
            result = self._runner.run(document, claim, progress=recorder.stage, stopped=self._stopped)
        ended = outcomes(result)
        claim.finish(ended)
        for file in ended:
            logger.info("file %s of %s is %s", file.file_id, claim.dataset.name, file.status)
        return Counter(file.status for file in ended)

    def _take_out(self, claim: Claim) -> Counter[str]:
        """Clean up after failed files. A file that was asked to be archived or deleted goes back to its former state
        with a reason: that needs its bytes to leave storage as well."""
        failing = [file.file_id for file in claim.files if file.status == "failing"]
        for file in claim.files:
            if file.status != "failing":
                claim.refuse(file.file_id, "Files cannot be archived or deleted with this version: update the package.")
        if failing:
            document = take_out_document(claim, self._services.ledger, failing)
            self._runner.run(document, claim, progress=no_progress, stopped=self._stopped)
            claim.removed(failing)
        return Counter({"failed": len(failing)})

    def _stopped(self) -> str | None:
        return self._why if self._stop.is_set() else None
