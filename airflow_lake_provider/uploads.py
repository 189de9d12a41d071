"""From a file on this machine into raw storage and the ledger, with nothing left behind by an upload that dies."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_lake_provider.errors import (
    InvalidName,
    LakeError,
    LedgerUnavailable,
    NotFound,
    StorageError,
    StorageUnavailable,
)
from airflow_lake_provider.file_id import new_file_id

if TYPE_CHECKING:
    from airflow_lake_provider.dataset import DatasetName
    from airflow_lake_provider.ledger import File, NewFile
    from airflow_lake_provider.services import Services

logger = logging.getLogger(__name__)

# A transaction for each of many small files would take longer than storing them.
_TOGETHER: Final = 50
# How long storing that many may take. Until then a process that died has its bytes in raw storage, unknown to all.
_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Upload:
    """What became of one upload: the file as the ledger has it, or why it was refused before it had an id."""

    path: Path
    file: File | None
    reason: str | None = None


def store(
    services: Services, paths: Sequence[Path], dataset: DatasetName, *, overrides: Mapping[str, Any], who: str | None
) -> list[Upload]:
    """Store files in raw storage and register them, in order; see ``Lake.upload``."""
    services.ledger.ensure_dataset(dataset)
    uploads: list[Upload] = []
    away: StorageUnavailable | None = None
    for start in range(0, len(paths), _TOGETHER):
        group = paths[start : start + _TOGETHER]
        if away is not None:
            uploads += [Upload(path, None, str(away)) for path in group]
            continue
        with _announced(services, group, dataset) as batch:
            away = batch.store(overrides)
            uploads += batch.register(who)
    return uploads


def remove_abandoned(services: Services, file_ids: Collection[str] | None = None) -> None:
    """Remove from raw storage what uploads have left that died, or took too long, or are the given ones.

    Of a file that is registered nothing is ever removed here. What cannot be removed now is logged, and tried again the
    next time. Raises LedgerError.
    """
    for file_id, uri in services.ledger.abandon(file_ids).items():
        try:
            services.raw.delete(uri)
        except LakeError as error:
            logger.warning("what an upload has left could not be removed, and will be tried again: %s", error)
            if isinstance(error, StorageUnavailable):
                return  # each of the others would be waited for as long
            continue
        services.ledger.withdraw([file_id])
        logger.info("removed %s, which was never registered", uri)


@contextlib.contextmanager
def _announced(services: Services, paths: Sequence[Path], dataset: DatasetName) -> Iterator[_Batch]:
    """A batch whose places the ledger knows; after an error none of its bytes stay that are not registered."""
    batch = _Batch(services, dataset, paths)
    services.ledger.announce(batch.places, seconds=_SECONDS)
    try:
        yield batch
    except LedgerUnavailable:
        raise  # they may have been registered after all: what was not is removed in time
    except Exception:
        try:
            remove_abandoned(services, batch.places)
        except LakeError as error:
            logger.warning("what was stored of an upload is removed later: %s", error)
        raise


class _Batch:
    """A few files that are announced, stored and registered together."""

    def __init__(self, services: Services, dataset: DatasetName, paths: Sequence[Path]) -> None:
        self._services = services
        self._dataset = dataset
        self._paths = paths
        self._ids = [new_file_id() for _ in paths]
        self._stored: dict[str, NewFile] = {}
        self._refused: dict[str, str] = {}
        self._broken_off: str | None = None
        self.places: dict[str, str] = {}
        for file_id, path in zip(self._ids, paths, strict=True):
            try:
                self.places[file_id] = services.raw.uri(dataset, file_id, path.name)
            except InvalidName as error:
                self._refused[file_id] = str(error)

    def store(self, overrides: Mapping[str, Any]) -> StorageUnavailable | None:
        """Put the files into raw storage. Each that cannot be is refused, and all that follow once storage is away."""
        from airflow_lake_provider.ledger import NewFile

        pairs = zip(self._ids, self._paths, strict=True)
        for file_id, path in pairs:
            if file_id in self._refused:
                continue
            try:
                raw = self._services.raw.put(path, self._dataset, file_id)
            except StorageUnavailable as error:
                self._broken_off = file_id
                for rest, _ in itertools.chain([(file_id, path)], pairs):
                    self._refused.setdefault(rest, str(error))
                return error
            except (NotFound, StorageError) as error:
                self._refused[file_id] = str(error)
            else:
                self._stored[file_id] = NewFile(file_id, path.name, raw.uri, raw.size, raw.sha256, dict(overrides))
        return None

    def register(self, who: str | None) -> list[Upload]:
        """Tell the ledger of the files that are stored."""
        ledger = self._services.ledger
        new = list(self._stored.values())
        files = {file.file_id: file for file in ledger.upload(self._dataset, new, announced=True, who=who)}
        # Of a file that could not be put nothing is there, but for one whose storage went away under way.
        ledger.withdraw([file_id for file_id in self._refused if file_id != self._broken_off])
        return [
            Upload(path, files.get(file_id), self._refused.get(file_id))
            for file_id, path in zip(self._ids, self._paths, strict=True)
        ]
