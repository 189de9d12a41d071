"""A real catalog on a real Postgres, and datasets that nothing has used yet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest

from airflow_lake_provider.catalog import open_catalog
from airflow_lake_provider.dataset import DatasetName, Layer
from airflow_lake_provider.medallion.dataset_settings import effective
from airflow_lake_provider.medallion.embedded.engine import EmbeddedEngine
from airflow_lake_provider.medallion.engine import FileOutcome, FileWork, PresentFile
from airflow_lake_provider.medallion.present import Present
from airflow_lake_provider.medallion.reading import Limits
from airflow_lake_provider.medallion.types import ColumnType, canonical_values

_numbers = itertools.count(1)


def go_on() -> None:
    """A fence that lets everything through."""


class Subject:
    """One dataset as its caller sees it: it remembers which files are present, as the ledger would."""

    def __init__(self, engine: EmbeddedEngine, folder: Path) -> None:
        self.engine = engine
        self.name = DatasetName("test", "engine", f"d{next(_numbers)}")
        self.present: dict[str, PresentFile] = {}
        self._folder = folder

    def work(
        self,
        text: str,
        *,
        overrides: dict[str, object] | None = None,
        earlier: Literal["nothing", "same", "other"] = "nothing",
        file_id: str | None = None,
    ) -> FileWork:
        """A file to be taken in."""
        file_id = file_id or f"{next(_numbers):032x}"
        path = self._folder / f"{file_id}.csv"
        path.write_text(text, encoding="utf-8", newline="")
        return FileWork(file_id, path.name, path, path.stat().st_size, effective({}, overrides or {}), earlier)

    def ingest(self, *work: FileWork, fence: object = go_on) -> list[FileOutcome]:
        """Take files in as one batch."""
        ids = {item.file_id for item in work}
        present = [file for file_id, file in sorted(self.present.items()) if file_id not in ids]
        outcomes = self.engine.ingest(
            self.name,
            Present.of(present),
            work,
            fence=fence,
            progress=lambda *_: None,  # type: ignore[arg-type]
        )
        for item, outcome in zip(work, outcomes, strict=True):
            self.present.pop(item.file_id, None)
            if outcome.status == "ready":
                self.present[item.file_id] = PresentFile(item.file_id, outcome.columns, item.settings)
        return outcomes

    def take_out(self, *file_ids: str) -> None:
        """Take files out."""
        for file_id in file_ids:
            self.present.pop(file_id, None)
        self.engine.take_out(self.name, Present.of(self.files()), file_ids, fence=go_on)

    def rebuild(self) -> dict[Layer, int]:
        """Compute silver and gold anew."""
        return self.engine.rebuild(self.name, Present.of(self.files()), fence=go_on)

    def files(self) -> list[PresentFile]:
        """The present files in upload order."""
        return [file for _, file in sorted(self.present.items())]

    def types(self, layer: Layer) -> dict[str, str]:
        """Column → type."""
        return {column.name: column.type for column in self.engine.schema(self.name, layer)[0]}

    def rows(self, layer: Layer, *, system: bool = False) -> list[tuple[object, ...]]:
        """The rows as canonical text."""
        data, own = self.engine.schema(self.name, layer)
        columns = [*data, *own] if system else data
        found: list[tuple[object, ...]] = []
        order = [file.file_id for file in self.files()]
        for batch in self.engine.rows(self.name, layer, file_order=order, system=system, limit=None):
            texts: list[Sequence[object]] = [
                array.to_pylist()
                if column.type == "list<string>"
                else canonical_values(array, ColumnType.parse(column.type))
                for array, column in zip(batch.columns, columns, strict=True)
            ]
            found += zip(*texts, strict=True) if texts else [()] * batch.num_rows
        return found


@pytest.fixture(scope="session")
def engine(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEngine]:
    """An engine on a catalog of its own."""
    import psycopg

    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute("CREATE DATABASE engine_tests")
    head, _, tail = postgres_server.partition("?")
    folder = tmp_path_factory.mktemp("engine")
    catalog = open_catalog(warehouse=f"file://{folder}/warehouse", dsn=f"{head.rpartition('/')[0]}/engine_tests?{tail}")
    engine = EmbeddedEngine(catalog, temp_dir=folder / "tmp", limits=Limits())
    yield engine
    engine.close()
    catalog.close()


@pytest.fixture
def dataset(engine: EmbeddedEngine, tmp_path: Path) -> Subject:
    """A dataset without files."""
    return Subject(engine, tmp_path)
