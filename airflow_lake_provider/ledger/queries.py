"""What anyone may look at: files, datasets, history, and waiting for what comes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

from sqlalchemy import Connection, func, select

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import NotFound
from airflow_lake_provider.ledger import leases, operations
from airflow_lake_provider.ledger.database import Database
from airflow_lake_provider.ledger.listen import listen
from airflow_lake_provider.ledger.records import Dataset, Event, File, Notice
from airflow_lake_provider.ledger.schema import datasets, file_events, files
from airflow_lake_provider.ledger.states import STATUSES, Status
from airflow_lake_provider.ledger.transitions import file_select, resting, to_dataset, to_file


class Queries:
    """The part of the ledger that changes nothing. Every method may raise LedgerUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def dataset(self, name: DatasetName) -> Dataset:
        """The dataset; raises NotFound."""
        return self._database.run(lambda connection, again: operations.find_dataset(connection, name))

    def datasets(self) -> list[Dataset]:
        """All datasets, by name."""
        query = select(datasets).order_by(datasets.c.vendor, datasets.c.project, datasets.c.folder)
        return self._database.run(lambda connection, again: [to_dataset(row) for row in connection.execute(query)])

    def file(self, file_id: str) -> File:
        """One file; raises NotFound."""
        return self._database.run(lambda connection, again: files_by_id(connection, [file_id])[0])

    def by_ids(self, file_ids: Sequence[str]) -> list[File]:
        """These files, in the order in which they are asked for; raises NotFound."""
        return self._database.run(lambda connection, again: files_by_id(connection, file_ids))

    def files(
        self,
        dataset: DatasetName | None = None,
        *,
        statuses: Collection[Status] | None = None,
        newest_first: bool = False,
        after: int | None = None,
        limit: int | None = None,
    ) -> list[File]:
        """Files in the order of upload, of one dataset and of some states only where given.

        ``after`` is the ``seq`` of the last file of the page before, ``limit`` the length of a page.
        """
        query = file_select()
        if dataset is not None:
            query = query.where(datasets.c.table_name == dataset.table_name)
        if statuses is not None:
            query = query.where(files.c.status.in_(list(statuses)))
        if after is not None:
            query = query.where(files.c.seq < after if newest_first else files.c.seq > after)
        query = query.order_by(files.c.seq.desc() if newest_first else files.c.seq).limit(limit)
        return self._database.run(lambda connection, again: [to_file(row) for row in connection.execute(query)])

    def present_files(self, dataset: DatasetName) -> list[File]:
        """The ready files of a dataset in the order of upload, with their summaries.

        Files that are being read are not among them: the claim that holds them knows about those.
        """
        return self.files(dataset, statuses=["ready"])

    def status_counts(self, dataset: DatasetName | None = None) -> dict[Status, int]:
        """How many files are in each state, in one dataset or in all; every state is named."""
        query = select(files.c.status, func.count().label("number")).group_by(files.c.status)
        if dataset is not None:
            query = query.join(datasets).where(datasets.c.table_name == dataset.table_name)

        def work(connection: Connection, again: bool) -> dict[Status, int]:
            found = {row.status: row.number for row in connection.execute(query)}
            return {status: found.get(status, 0) for status in STATUSES}

        return self._database.run(work)

    def unfinished(self, dataset: DatasetName | None = None) -> int:
        """How many files wait or are being worked on, of one dataset or of all; removals that are put off are not."""
        name = dataset.table_name if dataset is not None else None
        return self._database.run(lambda connection, again: leases.unfinished(connection, table_name=name))

    def events(
        self,
        file_id: str | None = None,
        *,
        dataset: DatasetName | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> list[Event]:
        """History, oldest first: of one file, of one dataset, or of everything; ``after`` is the last ``id`` seen."""
        query = select(file_events).where(file_events.c.id > after).order_by(file_events.c.id).limit(limit)
        if file_id is not None:
            query = query.where(file_events.c.file_id == file_id)
        if dataset is not None:
            query = query.join(datasets).where(datasets.c.table_name == dataset.table_name)

        def work(connection: Connection, again: bool) -> list[Event]:
            return [Event(**row._mapping) for row in connection.execute(query)]

        return self._database.run(work)

    def listen(self, *, poll: float = 5.0) -> Iterator[tuple[Notice, ...]]:
        """Wake-ups: once as soon as notifications arrive here, then at each, and at least every ``poll`` seconds.

        Look at the ledger at every one, the first included.
        """
        self._database.run(lambda connection, again: None)  # brings the tables up to date
        return listen(self._database, poll=poll)

    def wait(self, file_ids: str | Sequence[str], *, timeout: float | None = None, poll: float = 5.0) -> list[File]:
        """Wait until nothing more will happen to any of these files by itself, and return them as they are then.

        After ``timeout`` seconds (None: never) they are returned as they are; ``resting`` tells which were not done.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        found = self.by_ids(as_ids(file_ids))
        if all(map(resting, found)):
            return found
        shortest = poll if timeout is None else max(min(poll, timeout), 0.01)
        for _ in self.listen(poll=shortest):
            found = self.by_ids(as_ids(file_ids))
            if all(map(resting, found)) or (deadline is not None and time.monotonic() >= deadline):
                break
        return found


def as_ids(file_ids: str | Sequence[str]) -> list[str]:
    return [file_ids] if isinstance(file_ids, str) else list(file_ids)


def files_by_id(connection: Connection, file_ids: Sequence[str]) -> list[File]:
    rows = connection.execute(file_select().where(files.c.file_id.in_(file_ids)))
    found = {file.file_id: file for file in map(to_file, rows)}
    missing = [file_id for file_id in file_ids if file_id not in found]
    if missing:
        raise NotFound(f"The ledger has no file {missing[0]}: list the files to see which there are.")
    return [found[file_id] for file_id in file_ids]
