"""The input document of a job: what it is to do, and what it needs to know of the ledger for that.

Whoever holds the claim makes it; the job reads it as JSON. It names files and their settings and holds no secret. Of
the files that are there already it says what they say together: only to compute tables anew, a job asks for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.jobs.present import join_present

if TYPE_CHECKING:
    from airflow_lake_provider.ledger import Claim, File, Lease, Ledger

VERSION = 2

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
class JobDocument:
    """What to do with a dataset: read ``files`` in, take them out, or compute silver and gold anew.

    ``settings`` are the dataset's; ``token`` is the lease under which it is done, and the fence of every commit.
    ``present`` is what the other files, whose rows the tables hold and keep, say together (a Joined as JSON).
    """

    kind: JobKind
    dataset: DatasetName
    settings: Mapping[str, Any]
    token: str
    lease_seconds: float
    files: tuple[JobFile, ...]
    present: Mapping[str, Any]

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
            "present": dict(self.present),
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
            present=values["present"],
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
    # A file to work on that was ready before has rows of its own in the tables.
    ours = [file.file_id for file in files if file.settings_version is not None]
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
        present=join_present(ledger, lease.dataset, without=ours).to_dict(),
    )


def _earlier(file: File) -> Earlier:
    if file.settings_version is not None:
        return "other"  # it was ready before, and is read with other settings now
    return "same" if file.attempt > 1 else "nothing"
