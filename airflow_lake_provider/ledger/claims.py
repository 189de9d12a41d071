"""What a worker holds: the lease of a dataset, and the files it has claimed in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Literal, Self

from sqlalchemy import Connection, bindparam, select, text
from sqlalchemy.dialects.postgresql import JSONB

from airflow_lake_provider.errors import LakeError, LeaseLost, LedgerError, TransitionRefused
from airflow_lake_provider.ledger import leases, outcomes
from airflow_lake_provider.ledger.database import Database
from airflow_lake_provider.ledger.records import Counts, Dataset, File, Kind, Outcome
from airflow_lake_provider.ledger.schema import files
from airflow_lake_provider.ledger.states import REMOVALS
from airflow_lake_provider.ledger.transitions import (
    Locked,
    apply,
    check_token,
    lock_dataset,
    lock_files,
    lock_where,
)

_NOTED_TOGETHER: Final = 1000

# Any number of notes, each [file id, stage, data], in one statement, whose rows are locked in the order that all
# writers share.
_PROGRESS: Final = text(
    """
    WITH notes AS (
        SELECT place, note->>0 AS file_id, note->>1 AS stage, note->2 AS data
        FROM jsonb_array_elements(:notes) WITH ORDINALITY AS n (note, place)
    ), latest AS (
        SELECT DISTINCT ON (file_id) file_id, stage FROM notes ORDER BY file_id, place DESC
    ), held AS (
        SELECT f.file_id FROM lake.files AS f
        WHERE f.file_id IN (SELECT file_id FROM latest) AND f.lease_token = :token ORDER BY f.seq FOR UPDATE
    ), marked AS (
        UPDATE lake.files AS f SET stage = latest.stage, updated_at = clock_timestamp()
        FROM held JOIN latest USING (file_id)
        WHERE f.file_id = held.file_id RETURNING f.dataset_id, f.file_id, f.status, f.attempt
    )
    INSERT INTO lake.file_events (dataset_id, file_id, actor, who, from_status, to_status, stage, attempt, data)
    SELECT dataset_id, file_id, 'worker', :who, status, status, stage, attempt, data
    FROM marked JOIN notes USING (file_id) ORDER BY place
    """
).bindparams(bindparam("notes", type_=JSONB))


class Lease:
    """The lease of one dataset, for ``lease_seconds`` from the last heartbeat on, by the database's clock.

    Used as a context manager it ends with the block. ``token`` is what another process needs to go on with it.
    """

    def __init__(self, database: Database, dataset: Dataset, *, token: str, worker: str, lease_seconds: float) -> None:
        self.dataset = dataset
        self.token = token
        self.worker = worker
        self.lease_seconds = lease_seconds
        self._database = database
        self._lost: LeaseLost | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.dataset.name} by {self.worker}>"

    @property
    def lost(self) -> bool:
        """Whether a heartbeat or a check has found that another worker took over."""
        return self._lost is not None

    def heartbeat(self) -> None:
        """Extend the lease by ``lease_seconds`` from now on.

        Raises LeaseLost once another worker has taken over, LedgerUnavailable where the database cannot be reached.
        """
        if self._lost is not None:
            raise self._lost
        try:
            self._database.run(lambda connection, again: self._renew(connection))
        except LeaseLost as error:
            self._lost = error
            raise

    def check(self) -> None:
        """The fence: call it right before each commit. It extends the lease too, so the commit has its whole length.

        Raises LeaseLost once another worker has taken over.
        """
        self.heartbeat()

    def check_within(self, connection: Connection) -> None:
        """The fence as part of a transaction on this same database, to be called right before its commit.

        Until that transaction ends nobody can take the lease over. Raises LeaseLost.
        """
        leases.hold(connection, self.dataset.id, token=self.token)

    @contextmanager
    def keep_alive(self, every: float | None = None) -> Iterator[Self]:
        """Send heartbeats from a thread while the block runs, each ``every`` seconds (a third of the lease's length).

        The thread never raises: it sets ``lost`` and stops; an outage of the database it sits out.
        """
        pause = self.lease_seconds / 3 if every is None else every
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(pause) and not self.lost:
                # A lease that could not be renewed in time is lost only once somebody takes it.
                with suppress(LedgerError):
                    self.heartbeat()

        thread = threading.Thread(target=beat, name=f"lease {self.dataset.name}", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join(timeout=5)

    def release(self) -> None:
        """End the lease. Nothing happens where it is lost already."""
        self._database.run(lambda connection, again: self._release(connection, died=False, reason="released"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A failure that nobody dealt with counts as the death of the job, or it would be repeated for ever. Its text is
        # kept only where it is one of ours, since those never quote a cell.
        died = isinstance(error, Exception)
        reason = "released" if error is None else str(error) if isinstance(error, LakeError) else type(error).__name__
        if error is None:
            self._database.run(lambda connection, again: self._release(connection, died=died, reason=reason))
        elif not isinstance(error, LeaseLost):
            # What cannot be released now expires; the error under way says more.
            with suppress(LedgerError):
                self._database.run(lambda connection, again: self._release(connection, died=died, reason=reason))

    def _renew(self, connection: Connection) -> None:
        leases.renew(connection, self.dataset.id, token=self.token, seconds=self.lease_seconds)

    def _release(self, connection: Connection, *, died: bool, reason: str) -> None:
        leases.free(connection, self.dataset.id, token=self.token)


class Claim(Lease):
    """Files of one dataset that this worker alone may work on, all to be read or all to be removed.

    ``files`` are as they were claimed, oldest first; ``File.attempt`` is above 1 where an earlier attempt may have left
    something behind or may still be writing. What is not finished when the claim is released goes back.
    """

    def __init__(
        self,
        database: Database,
        dataset: Dataset,
        claimed: Sequence[File],
        *,
        token: str,
        worker: str,
        lease_seconds: float,
        max_attempts: int,
    ) -> None:
        super().__init__(database, dataset, token=token, worker=worker, lease_seconds=lease_seconds)
        self.files = tuple(claimed)
        self.kind: Kind = "removal" if any(file.status in REMOVALS for file in claimed) else "ingest"
        self._attempts = {file.file_id: file.attempt for file in claimed}
        self._max_attempts = max_attempts
        self._cancelled: frozenset[str] = frozenset()
        self._finished: set[str] = set()

    @property
    def cancelled(self) -> frozenset[str]:
        """Files of this claim that somebody asked to archive or delete meanwhile, as of the last heartbeat.

        Give them back with ``hand_back`` (or finish them): the removal follows at once.
        """
        return self._cancelled

    def event(self, file_ids: str | Sequence[str], stage: str, data: Mapping[str, Any] | None = None) -> None:
        """Note what the worker does now with these files. Raises LeaseLost."""
        chosen = [file_ids] if isinstance(file_ids, str) else list(dict.fromkeys(file_ids))
        self._note([(file_id, stage, dict(data or {})) for file_id in chosen])

    def events(self, notes: Sequence[tuple[str, str, Mapping[str, Any]]]) -> None:
        """Note stages of several files, each as (file id, stage, data), in their order and in one transaction.

        Raises LeaseLost.
        """
        self._note([(file_id, stage, dict(data)) for file_id, stage, data in notes])

    def _note(self, notes: Sequence[tuple[str, str, Mapping[str, Any]]]) -> None:
        def work(connection: Connection, again: bool) -> None:
            # Progress is frequent, and worth nothing after a crash: it need not wait for the disk.
            connection.execute(text("SET LOCAL synchronous_commit = off"))
            for start in range(0, len(notes), _NOTED_TOGETHER):
                part = notes[start : start + _NOTED_TOGETHER]
                values = {"notes": part, "token": self.token, "who": self.worker}
                if connection.execute(_PROGRESS, values).rowcount != len(part):
                    self._held(connection, list({file_id for file_id, _, _ in part}))
                    raise LeaseLost(f"Files of {self.dataset.name} were taken from this claim: write nothing more.")

        if notes:
            self._fenced(work)

    def finish(self, results: Sequence[Outcome]) -> None:
        """Write how files ended, all in one transaction: all of them or, with an error, none.

        Raises LeaseLost once another worker has taken over, TransitionRefused for an outcome that the file's state does
        not allow.
        """
        by_id = {result.file_id: result for result in results}
        if len(by_id) != len(results):
            raise ValueError("one outcome for each file is expected")

        def work(connection: Connection, again: bool) -> None:
            moves = []
            for locked in self._locked(connection, list(by_id)):
                result = by_id[locked.file.file_id]
                if again and outcomes.written(locked, result, self._attempts[locked.file.file_id]):
                    continue
                self._check(locked)
                moves.append(outcomes.move(locked, result, settings_version=self.dataset.settings_version))
            apply(connection, moves, actor="worker", who=self.worker)

        self._fenced(work)
        self._finished.update(by_id)

    def ready(self, file_id: str, counts: Counts, summary: Mapping[str, Any], notes: Sequence[Any] = ()) -> None:
        """All rows of the file are committed. ``summary`` is what its columns say about their types."""
        self.finish([Outcome(file_id, "ready", counts=counts, summary=summary, notes=notes)])

    def fail(self, file_id: str, reason: str, *, notes: Sequence[Any] = ()) -> None:
        """The file cannot be read, and none of its rows are in any table."""
        self.finish([Outcome(file_id, "failed", reason=reason, notes=notes)])

    def quarantine(self, file_id: str, reason: str) -> None:
        """The file is no delimited text at all, and nothing of it is in any table."""
        self.finish([Outcome(file_id, "quarantined", reason=reason)])

    def failing(self, file_id: str, reason: str) -> None:
        """The file failed and rows of it may be in a table: they will be taken out like those of a removal."""
        self.finish([Outcome(file_id, "failing", reason=reason)])

    def removed(self, file_ids: str | Sequence[str], *, pending: Sequence[str] = ()) -> None:
        """No row of these files is in a table any more: archived, deleted, or failed after its clean-up.

        ``pending`` names what is still to be done elsewhere, for example ``("purge", "models")``; see
        ``Ledger.settle_pending``.
        """
        ends: dict[str, Literal["archived", "deleted", "failed"]] = {
            "archiving": "archived",
            "deleting": "deleted",
            "failing": "failed",
        }
        chosen = [file_ids] if isinstance(file_ids, str) else list(file_ids)
        states = {file.file_id: file.status for file in self.files}
        results = []
        for file_id in chosen:
            end = ends.get(states.get(file_id, ""))
            if end is None:
                raise TransitionRefused(f"File {file_id} was not claimed for removal, so it cannot be removed.")
            results.append(Outcome(file_id, end, pending=pending))
        self.finish(results)

    def refuse(self, file_id: str, reason: str) -> None:
        """Something forbids this removal and nothing was removed: back to the state the file came from.

        Raises TransitionRefused where another file with the same bytes has taken its place and has been read since; the
        removal then stays, see ``retry_later``.
        """

        def work(connection: Connection, again: bool) -> None:
            (locked,) = self._held(connection, [file_id])
            moves = outcomes.refused(connection, locked, reason)
            apply(connection, moves, actor="worker", who=self.worker)

        self._fenced(work)

    def retry_later(self, file_id: str, reason: str) -> None:
        """This removal could not be done now; it is tried again after a pause that grows each time."""

        def work(connection: Connection, again: bool) -> None:
            (locked,) = self._held(connection, [file_id])
            if locked.file.status not in REMOVALS:
                raise TransitionRefused(f"File {file_id} is {locked.file.status}: only a removal can be put off.")
            move = outcomes.put_off(connection, locked, reason)
            apply(connection, [move], actor="worker", who=self.worker)

        self._fenced(work)

    def hand_back(
        self, file_ids: Sequence[str] | None = None, reason: str = "handed back", *, died: bool = False
    ) -> None:
        """Give files back unfinished (None: all that are left), to be claimed again by anyone.

        ``died`` says that their job died: alone in its claim, the file has one attempt less, and after the last one
        becomes ``failing``; together with others, each is tried alone from now on.
        """

        def work(connection: Connection, again: bool) -> None:
            held = self._left(connection) if file_ids is None else self._held(connection, file_ids)
            leases.put_back(
                connection,
                held,
                reason=reason,
                died=died,
                actor="worker",
                who=self.worker,
                max_attempts=self._max_attempts,
            )

        self._fenced(work)

    def _renew(self, connection: Connection) -> None:
        super()._renew(connection)
        asked = select(files.c.file_id).where(
            files.c.dataset_id == self.dataset.id,
            files.c.lease_token == self.token,
            files.c.removal_requested.is_not(None),
        )
        self._cancelled = frozenset(connection.execute(asked).scalars())

    def _release(self, connection: Connection, *, died: bool, reason: str) -> None:
        lock_dataset(connection, self.dataset.id)
        leases.put_back(
            connection,
            self._left(connection),
            reason=reason,
            died=died,
            actor="worker",
            who=self.worker,
            max_attempts=self._max_attempts,
        )
        super()._release(connection, died=died, reason=reason)

    def _left(self, connection: Connection) -> list[Locked]:
        lock_dataset(connection, self.dataset.id)
        return lock_where(connection, files.c.dataset_id == self.dataset.id, files.c.lease_token == self.token)

    def _locked(self, connection: Connection, file_ids: Sequence[str]) -> list[Locked]:
        strange = [file_id for file_id in file_ids if file_id not in self._attempts]
        if strange:
            raise TransitionRefused(f"File {strange[0]} is not one of this claim's: claim it first.")
        return list(lock_files(connection, file_ids).values())

    def _held(self, connection: Connection, file_ids: Sequence[str]) -> list[Locked]:
        held = self._locked(connection, file_ids)
        for locked in held:
            self._check(locked)
        return held

    def _check(self, locked: Locked) -> None:
        file = locked.file
        if file.file_id in self._finished:
            raise TransitionRefused(
                f"File {file.file_id} ({file.name!r} of {file.dataset}) is finished already: it is {file.status}, and "
                "this claim has no say in it any more."
            )
        check_token(locked, self.token, self._attempts[file.file_id])

    def _fenced(self, work: Any) -> None:
        try:
            self._database.run(work)
        except LeaseLost as error:
            self._lost = error
            raise
