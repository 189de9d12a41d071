"""The ledger as its users see it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, select

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import LeaseLost
from airflow_lake_provider.ledger import leases, operations, present, uploads
from airflow_lake_provider.ledger.claims import Claim, Lease
from airflow_lake_provider.ledger.database import Database
from airflow_lake_provider.ledger.present import Part
from airflow_lake_provider.ledger.queries import Queries, as_ids, files_by_id
from airflow_lake_provider.ledger.records import Dataset, File, Kind, NewFile
from airflow_lake_provider.ledger.schema import datasets, files
from airflow_lake_provider.ledger.states import Actor
from airflow_lake_provider.ledger.transitions import (
    Move,
    apply,
    file_select,
    lock_dataset,
    lock_files,
    to_dataset,
    to_file,
)

_PIECE: Final = 1000


class Ledger(Queries):
    """The ingest database at ``dsn`` (a URL or ``key=value`` words), connected to on first use.

    Tables are created or upgraded then, unless ``migrate`` is False. ``max_attempts`` is how often the job of one file
    may die; an outage of up to ``retry_for`` seconds is sat out, with pauses from ``backoff`` seconds on. One object
    may be used by many threads, and by a process that was forked. Every method may raise LedgerUnavailable.
    """

    def __init__(
        self,
        dsn: str,
        *,
        max_attempts: int = 3,
        retry_for: float = 15.0,
        backoff: float = 0.1,
        pool_size: int = 4,
        migrate: bool = True,
    ) -> None:
        self.max_attempts = max_attempts
        super().__init__(Database(dsn, retry_for=retry_for, backoff=backoff, pool_size=pool_size, migrate=migrate))

    def __repr__(self) -> str:
        return f"<Ledger {self._database.place}>"

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def conninfo(self) -> str:
        """The libpq connection string, password included."""
        return self._database.conninfo

    def open(self) -> Ledger:
        """Connect and bring the tables up to date now; raises LedgerError where that cannot be."""
        self._database.run(lambda connection, again: None)
        return self

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        self._database.close()

    # -- what a user does ----------------------------------------------------------------------------------------------

    def ensure_dataset(self, name: DatasetName) -> Dataset:
        """The dataset, created where it is new; raises DatasetNameCollision where its table name is another's."""
        return self._database.run(lambda connection, again: operations.ensure_dataset(connection, name))

    def announce(self, places: Mapping[str, str], *, seconds: float) -> None:
        """Say where the bytes of uploads will be in raw storage, by their ids, before any are stored.

        What is not registered within ``seconds`` is ``abandoned``.
        """
        self._database.run(lambda connection, again: uploads.announce(connection, places, seconds=seconds))

    def withdraw(self, file_ids: Collection[str]) -> None:
        """Forget announced uploads of which nothing is in raw storage."""
        self._database.run(lambda connection, again: uploads.withdraw(connection, file_ids))

    def abandon(self, file_ids: Collection[str] | None = None, *, limit: int = 100) -> dict[str, str]:
        """Give up announced uploads, where none are named those whose time is over; gives where their bytes are, by id.

        Registered ones are not among them. The others come again until they are withdrawn.
        """
        return self._database.run(lambda connection, again: uploads.abandon(connection, file_ids, limit))

    def upload(
        self,
        name: DatasetName,
        new: NewFile | Sequence[NewFile],
        *,
        announced: bool = False,
        who: str | None = None,
    ) -> list[File]:
        """Register uploads, whose bytes are in raw storage; the dataset is created where it is new.

        A file whose bytes the dataset has already comes back as ``duplicate``. Registering one again changes nothing:
        after an error the whole call may be repeated. Raises UploadAbandoned where one that was ``announced`` has been
        given up since: then none of its piece of 1,000 is registered.
        """
        batch = [new] if isinstance(new, NewFile) else list(new)
        uploaded: list[File] = []
        # In pieces, since a worker's heartbeat waits while the dataset is being written.
        for start in range(0, len(batch), _PIECE):
            piece = batch[start : start + _PIECE]

            def work(connection: Connection, again: bool, piece: Sequence[NewFile] = piece) -> list[File]:
                operations.upload(connection, name, piece, announced=announced, who=who)
                return files_by_id(connection, [file.file_id for file in piece])

            uploaded += self._database.run(work)
        return uploaded

    def archive(self, file_ids: str | Sequence[str], *, who: str | None = None) -> list[File]:
        """Take the rows of files out of all tables and keep the raw files, so that they can be restored.

        All or none: raises TransitionRefused where one of them cannot be archived. Of a file that a worker is reading
        the wish is noted, and it follows once the worker lets go.
        """

        def work(connection: Connection, again: bool) -> list[File]:
            operations.remove(connection, as_ids(file_ids), "archiving", who=who)
            return files_by_id(connection, as_ids(file_ids))

        return self._database.run(work)

    def delete(self, file_ids: str | Sequence[str], *, who: str | None = None) -> list[File]:
        """Take the rows of files out of all tables, and the raw files out of storage. Otherwise like ``archive``."""

        def work(connection: Connection, again: bool) -> list[File]:
            operations.remove(connection, as_ids(file_ids), "deleting", who=who)
            return files_by_id(connection, as_ids(file_ids))

        return self._database.run(work)

    def restore(self, file_ids: str | Sequence[str], *, who: str | None = None) -> list[File]:
        """Read archived files again. Raises TransitionRefused where the same bytes are there as another file by now."""
        return self._read_again(file_ids, "restored", None, who)

    def retry(
        self, file_ids: str | Sequence[str], *, overrides: Mapping[str, Any] | None = None, who: str | None = None
    ) -> list[File]:
        """Read failed or quarantined files again, with other ``overrides`` (None: those they have).

        A final duplicate is read too, where the file with the same bytes has left. Raises TransitionRefused.
        """
        return self._read_again(file_ids, "retried", overrides, who)

    def reread(
        self, file_ids: str | Sequence[str], *, overrides: Mapping[str, Any] | None = None, who: str | None = None
    ) -> list[File]:
        """Read ready files again, under the dataset's present settings, with other ``overrides`` (None: the same)."""
        return self._read_again(file_ids, "re-read", overrides, who)

    def change_settings(
        self, name: DatasetName, changes: Mapping[str, Any], *, actor: Actor = "user", who: str | None = None
    ) -> Dataset:
        """Set keys of a dataset's settings, or remove those given as None; ``settings_version`` rises with a change.

        The keys and values are taken as they are: whoever knows what they mean has checked them.
        """

        def work(connection: Connection, again: bool) -> Dataset:
            return operations.change_settings(connection, name, changes, actor=actor, who=who)

        return self._database.run(work)

    # -- what a worker does --------------------------------------------------------------------------------------------

    def claim(
        self,
        worker: str,
        *,
        dataset: DatasetName | None = None,
        kind: Kind | None = None,
        max_files: int = 500,
        max_bytes: int | None = None,
        lease_seconds: float = 60.0,
        file_ids: Collection[str] | None = None,
    ) -> Claim | None:
        """Lease a dataset that has work and claim its files; None where nothing is free to be worked on.

        Removals come before uploads, and a claim has files of one kind; with ``kind`` "ingest", datasets with a removal
        due are passed over. Files come oldest first, at most ``max_files`` and ``max_bytes`` together (but always one).
        ``dataset`` and ``file_ids`` narrow the choice. Without a heartbeat the lease ends after ``lease_seconds``.
        """
        token = uuid.uuid4().hex
        seen: set[int] = set()

        def work(connection: Connection, again: bool) -> tuple[int | None, Claim | None]:
            if again and (claim := self._resume(connection, token, lease_seconds)) is not None:
                return claim.dataset.id, claim
            row = leases.next_dataset(
                connection, name=dataset.table_name if dataset else None, kind=kind, file_ids=file_ids
            )
            if row is None:
                return None, None
            leases.take(
                connection,
                row.id,
                worker=worker,
                purpose=kind or "files",
                token=token,
                seconds=lease_seconds,
                max_attempts=self.max_attempts,
            )
            if not leases.take_files(
                connection,
                row.id,
                worker=worker,
                token=token,
                kind=kind,
                max_files=max_files,
                max_bytes=max_bytes,
                file_ids=file_ids,
            ):
                # What seemed to be work was a leftover that is now put back or given up.
                leases.free(connection, row.id, token=token)
                return row.id, None
            return row.id, self._resume(connection, token, lease_seconds)

        while True:
            dataset_id, claim = self._database.run(work)
            if claim is not None or dataset_id is None or dataset_id in seen:
                return claim
            seen.add(dataset_id)

    def resume(self, token: str, *, lease_seconds: float = 60.0) -> Claim:
        """Go on with a claim in another process, by its token. Raises LeaseLost where it is no longer in force."""

        def work(connection: Connection, again: bool) -> Claim:
            claim = self._resume(connection, token, lease_seconds)
            if claim is None:
                raise LeaseLost("The claim has ended, or another worker has taken over: nothing more may be written.")
            leases.renew(connection, claim.dataset.id, token=token, seconds=lease_seconds)
            return claim

        return self._database.run(work)

    def lease_dataset(
        self,
        name: DatasetName,
        worker: str,
        *,
        purpose: str = "maintenance",
        lease_seconds: float = 60.0,
        wait: float = 0.0,
    ) -> Lease | None:
        """Lease a dataset without claiming files, for maintenance or a rebuild.

        None where another worker still holds it after ``wait`` seconds.
        Raises NotFound for a dataset that does not exist.
        """
        token = uuid.uuid4().hex

        def work(connection: Connection, again: bool) -> Dataset | None:
            found = operations.find_dataset(connection, name)
            lock_dataset(connection, found.id)
            query = select(datasets).where(datasets.c.id == found.id)
            if again and connection.execute(query.where(datasets.c.lease_token == token)).one_or_none() is not None:
                return found
            if connection.execute(query.where(leases.FREE)).one_or_none() is None:
                return None
            leases.take(
                connection,
                found.id,
                worker=worker,
                purpose=purpose,
                token=token,
                seconds=lease_seconds,
                max_attempts=self.max_attempts,
            )
            return to_dataset(connection.execute(query).one())

        deadline = time.monotonic() + wait
        pause = 0.05
        while True:
            leased = self._database.run(work)
            if leased is not None:
                return Lease(self._database, leased, token=token, worker=worker, lease_seconds=lease_seconds)
            if time.monotonic() >= deadline:
                return None
            time.sleep(min(pause, max(deadline - time.monotonic(), 0.0)))
            pause = min(pause * 2, 1.0)

    def sweep(self, *, who: str | None = None) -> list[str]:
        """Put back the files of every expired lease and return their ids. A claim does so for the dataset it takes."""

        def work(connection: Connection, again: bool) -> list[str]:
            return leases.sweep(connection, who=who, max_attempts=self.max_attempts)

        return self._database.run(work)

    def in_tables(self, dataset: Dataset, *, without: Collection[str] = ()) -> list[File]:
        """The files whose rows the dataset's tables hold, but for those named, in the order of upload.

        A file that was ready and waits to be read again, or is being read, is one of them.
        """
        query = file_select().where(*present.there(dataset.id, without)).order_by(files.c.seq)
        return self._database.run(lambda connection, again: [to_file(row) for row in connection.execute(query)])

    def parts_in_tables(self, dataset: Dataset, *, without: Collection[str] = ()) -> list[Part]:
        """The same files in parts, with what ``keep_parts`` has kept of them under these settings of the dataset."""
        return self._database.run(lambda connection, again: present.load(connection, dataset, without))

    def keep_parts(self, dataset: Dataset, parts: Sequence[Part], changed: Collection[int]) -> None:
        """Keep the values of these parts, which are all there are; ``changed`` names by ``last`` those that are new."""
        self._database.run(lambda connection, again: present.keep(connection, dataset, parts, changed))

    def settle_pending(self, file_id: str, what: str, *, actor: Actor = "worker", who: str | None = None) -> File:
        """Note that a finished removal no longer has ``what`` to be done, for example ``purge``."""

        def work(connection: Connection, again: bool) -> File:
            locked = lock_files(connection, [file_id])[file_id]
            if what in locked.file.pending:
                rest = [item for item in locked.file.pending if item != what]
                note = Move(locked, locked.file.status, {"pending": rest}, data={"settled": what})
                apply(connection, [note], actor=actor, who=who)
            return files_by_id(connection, [file_id])[0]

        return self._database.run(work)

    # -- inner parts ---------------------------------------------------------------------------------------------------

    def _read_again(
        self, file_ids: str | Sequence[str], word: str, overrides: Mapping[str, Any] | None, who: str | None
    ) -> list[File]:
        def work(connection: Connection, again: bool) -> list[File]:
            operations.read_again(connection, as_ids(file_ids), word, overrides=overrides, who=who, again=again)
            return files_by_id(connection, as_ids(file_ids))

        return self._database.run(work)

    def _resume(self, connection: Connection, token: str, lease_seconds: float) -> Claim | None:
        row = connection.execute(select(datasets).where(datasets.c.lease_token == token)).one_or_none()
        if row is None:
            return None
        query = file_select().where(files.c.dataset_id == row.id, files.c.lease_token == token).order_by(files.c.seq)
        claimed = [to_file(found) for found in connection.execute(query)]
        return Claim(
            self._database,
            to_dataset(row),
            claimed,
            token=token,
            worker=row.lease_owner,
            lease_seconds=lease_seconds,
            max_attempts=self.max_attempts,
        )
