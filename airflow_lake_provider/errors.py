"""Every error this package raises on purpose, named for the condition it reports.

::

    LakeError
    ├── SettingsError             a setting has a value that cannot be used
    ├── InvalidName               a dataset or file name that cannot be used
    │   └── DatasetNameCollision  two datasets would share one table name
    ├── NotFound                  a file, dataset or table that is not there
    ├── UnreadableFile            the bytes cannot be read as CSV without loss
    │   ├── UnsupportedFile       not a CSV at all (quarantined by content)
    │   ├── DecompressionLimit    a .gz that unpacks to more than is allowed
    │   ├── UndecodableFile       no encoding reads every byte
    │   ├── UnclosedQuote         a quoted field that never ends
    │   └── RecordsDisagree       two ways of counting the records differ
    ├── ContractViolated          a file breaks the contract declared for its dataset
    ├── StorageError              raw storage or the warehouse refuses
    │   ├── StorageUnavailable    it cannot be reached; trying again may help
    │   ├── NoSpaceLeft           the disk or the quota is full
    │   ├── FileTooLarge          an upload over the size that is allowed
    │   ├── RawFileMissing        the uploaded bytes are gone
    │   └── RawFileChanged        the uploaded bytes are not what was uploaded
    ├── LedgerError               the ingest database refuses
    │   ├── LedgerUnavailable     it cannot be reached; trying again may help
    │   ├── TransitionRefused     the file is not in a state that allows this
    │   ├── UploadAbandoned       an upload took too long and was given up
    │   └── LeaseLost             another worker has taken over
    ├── CatalogError              the Iceberg catalog refuses
    │   ├── CatalogUnavailable    it cannot be reached; trying again may help
    │   │   └── CommitUnknown     a commit may or may not have taken place
    │   └── CommitConflict        the table changed since it was read
    └── JobError                  a job did not give a result
        ├── JobDied               it ended without one: a signal, an exit code, memory
        ├── JobTimedOut           it took longer than it may
        ├── JobFailed             an error that is not one of these ended it
        └── JobStopped            it was stopped on purpose

Messages are one sentence: what was wrong, where, what was expected, what to do. They name places
(line, column, count) and never the text of a cell.
"""

from __future__ import annotations

import errno
from typing import ClassVar


class LakeError(Exception):
    """Base of every error in this package; its text is fit to be shown to a user."""


class SettingsError(LakeError):
    """A setting has a value that cannot be used."""


class InvalidName(LakeError):
    """A dataset or file name that cannot be used."""


class DatasetNameCollision(InvalidName):
    """Two different datasets would share one table name."""


class NotFound(LakeError):
    """A file, dataset or table that is not there."""


class UnreadableFile(LakeError):
    """The bytes cannot be read as CSV without loss.

    ``line`` is the 1-based physical line where it was noticed, or None where no line can be named.
    """

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class UnsupportedFile(UnreadableFile):
    """Not a delimited text file; the upload is quarantined."""


class DecompressionLimit(UnreadableFile):
    """A compressed file that unpacks to more bytes than is allowed."""


class UndecodableFile(UnreadableFile):
    """No encoding, or not the one that was asked for, reads every byte."""


class UnclosedQuote(UnreadableFile):
    """A quoted field that is still open at the end of the file."""


class RecordsDisagree(UnreadableFile):
    """Two independent ways of counting records or characters differ, so nothing is committed."""


class ContractViolated(LakeError):
    """A file breaks the contract declared for its dataset."""


class StorageError(LakeError):
    """Raw storage or the warehouse refuses."""


class StorageUnavailable(StorageError):
    """Storage cannot be reached; trying again may help."""


class NoSpaceLeft(StorageError):
    """The disk or the quota is full; ``ERRNOS`` are the numbers by which the operating system says so."""

    ERRNOS: ClassVar = (errno.ENOSPC, errno.EDQUOT)


class FileTooLarge(StorageError):
    """An upload has more bytes than is allowed; nothing of it is kept."""


class RawFileMissing(StorageError):
    """The uploaded bytes are gone from raw storage."""


class RawFileChanged(StorageError):
    """The bytes in raw storage are not the ones that were uploaded."""


class LedgerError(LakeError):
    """The ingest database refuses."""


class LedgerUnavailable(LedgerError):
    """The ingest database cannot be reached; trying again may help."""


class TransitionRefused(LedgerError):
    """The file is not in a state that allows the transition."""


class UploadAbandoned(LedgerError):
    """An upload took so long that it was given up, and what was stored of it removed."""


class LeaseLost(LedgerError):
    """Another worker has taken over; what this one still writes is refused."""


class CatalogError(LakeError):
    """The Iceberg catalog refuses."""


class CatalogUnavailable(CatalogError):
    """The Iceberg catalog cannot be reached; trying again may help."""


class CommitUnknown(CatalogUnavailable):
    """The catalog went away during a commit that may have taken place; what was written for it must stay."""


class CommitConflict(CatalogError):
    """The table changed since it was read; the work is computed anew on the new base."""


class JobError(LakeError):
    """A job did not give a result."""


class JobDied(JobError):
    """A job ended without a result.

    ``exit_code`` or ``signal`` is how, where that is known; ``peak_bytes`` is the most memory that it and its children
    were seen to use.
    """

    def __init__(
        self,
        message: str,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        peak_bytes: int | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal
        self.peak_bytes = peak_bytes


class JobTimedOut(JobError):
    """A job was stopped because it took longer than it may."""


class JobFailed(JobError):
    """An error that is not one of this package's ended a job; its text stays in the job, since it may quote a cell."""


class JobStopped(JobError):
    """A job was stopped on purpose."""
