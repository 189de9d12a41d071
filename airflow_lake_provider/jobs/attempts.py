"""What becomes of claimed work whose attempt did not succeed: it is tried again after a pause, or given up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from airflow_lake_provider.errors import (
    CatalogUnavailable,
    CommitConflict,
    JobError,
    JobStopped,
    LakeError,
    StorageUnavailable,
)
from airflow_lake_provider.ledger import Claim, Outcome

logger = logging.getLogger(__name__)

# No file is to blame for these, however many there are in the claim.
_NO_FILES_FAULT: Final = (StorageUnavailable, CatalogUnavailable, CommitConflict)
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0


class Attempts:
    """Counts the attempts in a row that did not succeed, and settles each.

    ``most`` is how many there may be of the same work. Once files were given up, the next ones get one attempt each
    until one succeeds, so that a full disk ends the work on many files in good time. ``sleep`` is how a pause is made.
    """

    def __init__(self, most: int, sleep: Callable[[float], object] = time.sleep) -> None:
        self._most = most
        self._sleep = sleep
        self._failed = 0
        self._weary = False

    def succeeded(self, claim: Claim) -> None:
        """The attempt at this claim's work succeeded."""
        self._failed = 0
        if claim.kind == "ingest":
            self._weary = False

    def failed(self, claim: Claim, error: LakeError) -> bool:
        """Settle a claim that is still held after ``error``; False where there is no use in going on.

        Files of a batch are tried alone from now on, unless none of them can be to blame. The death of a job with one
        file alone is counted in the ledger, which gives the file up after the last one. After other errors the files
        are handed back and tried again after a pause, or, after the last attempt, ``failing`` with the error as their
        reason: what is in the tables of them is taken out. A file that was ready before is not given up for what may
        pass: its rows stay, it is handed back, and there is no use in going on; nor is there where rows cannot be taken
        out.
        """
        reason = str(error)
        logger.warning("an attempt at %s did not succeed: %s", claim.dataset.name, reason)
        if isinstance(error, JobStopped):
            claim.hand_back(reason=reason)
            return False
        if isinstance(error, JobError):
            claim.hand_back(reason=reason, died=True)
            return True
        if claim.kind == "ingest" and len(claim.files) > 1 and not isinstance(error, _NO_FILES_FAULT):
            claim.hand_back(reason=reason, died=True)
            return True
        self._failed += 1
        if self._failed < self._most and not self._weary:
            claim.hand_back(reason=reason)
            self._sleep(min(_FIRST_PAUSE * 4.0 ** (self._failed - 1), _LONGEST_PAUSE))
            return True
        self._failed = 0
        new = [file for file in claim.files if claim.kind == "ingest" and file.settings_version is None]
        if new:
            claim.finish([Outcome(file.file_id, "failing", reason=reason) for file in new])
            self._weary = True
        if len(new) == len(claim.files):
            return True
        claim.hand_back(reason=reason)
        return False
