"""The input document of a job: all it needs to know of the ledger, so that it can compute without asking.

Whoever holds the claim makes it; the job reads it as JSON. It names files and their settings and holds no secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_lake_provider.dataset import DatasetName

if TYPE_CHECKING:
    from airflow_lake_provider.ledger import Claim, File, Lease, Ledger

VERSION = 1

JobKind = Literal["ingest", "take_out", "rebuild"]
Earlier = Literal["nothing", "same", "other"]


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file to work on; ``earlier`` says what the tables may hold of it, see the engine's FileWork."""

    file_id: str
    name: str
    raw_uri: str
    size: int
    sha256: str
    overrides: Mapping[str, Any]
    earlier: Earlier


@dataclass(frozen=True, slots=True)
class JobPresent:
    """A file whose rows the tables hold and keep, with the summary of its columns."""

    file_id: str
    overrides: Mapping[str, Any]
    summary: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobDocument:
    """What to do with a dataset: read ``files`` in, take them out, or compute silver and gold anew.

    ``settings`` are the dataset's; ``token`` is the lease under which it is done, and the fence of every commit.
    """

    kind: JobKind
    dataset: DatasetName
    settings: Mapping[str, Any]
    token: str
    lease_seconds: float
    files: tuple[JobFile, ...]
    present: tuple[JobPresent, ...]

    def to_json(self) -> dict[str, Any]:
        """The document as JSON values."""
        return {
            "version": VERSION,
            "kind": self.kind,
            "dataset": str(self.dataset),
            "settings": dict(self.settings),
            "token": self.token,
            "lease_seconds": self.lease_seconds,
            "files": [asdict(file) for file in self.files],
            "present": [asdict(file) for file in self.present],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> JobDocument:
        """Read what ``to_json`` gave; raises ValueError for a document of another version."""
        if values.get("version") != VERSION:
            raise ValueError(
                f"The job's document has version {values.get('version')!r} and this package reads {VERSION}: "
                "use the same version of the package on both sides."
            )
        return cls(
            kind=values["kind"],
            dataset=DatasetName.parse(values["dataset"]),
            settings=values["settings"],
            token=values["token"],
            lease_seconds=values["lease_seconds"],
            files=tuple(JobFile(**file) for file in values["files"]),
            present=tuple(JobPresent(**file) for file in values["present"]),
        )


def ingest_document(claim: Claim, ledger: Ledger) -> JobDocument:
    """The document for reading the claimed files."""
    return _document("ingest", claim, ledger, claim.files)


def take_out_document(claim: Claim, ledger: Ledger, file_ids: Sequence[str]) -> JobDocument:
    """The document for taking the rows of some of the claimed files out of the tables."""
    return _document("take_out", claim, ledger, [file for file in claim.files if file.file_id in file_ids])


def rebuild_document(lease: Lease, ledger: Ledger) -> JobDocument:
    """The document for computing the leased dataset's silver and gold anew from bronze."""
    return _document("rebuild", lease, ledger, [])


def _document(kind: JobKind, lease: Lease, ledger: Ledger, files: Sequence[File]) -> JobDocument:
    ours = {file.file_id for file in files}
    # A file that was ready and waits to be read again is present too: its rows stay until then.
    there = ledger.files(lease.dataset.name, statuses=["ready", "uploaded", "processing"])
    return JobDocument(
        kind=kind,
        dataset=lease.dataset.name,
        settings=lease.dataset.settings,
        token=lease.token,
        lease_seconds=lease.lease_seconds,
        files=tuple(
            JobFile(file.file_id, file.name, file.raw_uri, file.size, file.sha256, file.overrides, _earlier(file))
            for file in files
        ),
        present=tuple(
            JobPresent(file.file_id, file.overrides, file.summary or {})
            for file in there
            if file.settings_version is not None and file.file_id not in ours
        ),
    )


def _earlier(file: File) -> Earlier:
    if file.settings_version is not None:
        return "other"  # it was ready before, and is read with other settings now
    return "same" if file.attempt > 1 else "nothing"
