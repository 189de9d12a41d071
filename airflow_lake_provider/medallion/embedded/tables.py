"""One table of a dataset, read on one base and changed in one commit.

PyIceberg's own retry rebases a late append and so makes a second copy of its rows. Here a change is computed on the
base that it was begun on and committed on that base, or not at all: the tables carry ``commit.retry.num-retries=0``,
and whoever meets CommitConflict starts over from a fresh base.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.exceptions import TableAlreadyExistsError as IcebergTableAlreadyExistsError
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import CreateTableTransaction, StagedTable, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.types import IcebergType, NestedField

from airflow_lake_provider.dataset import LAYERS, DatasetName, Layer
from airflow_lake_provider.errors import CatalogError, CommitConflict, CommitUnknown, LeaseLost
from airflow_lake_provider.medallion.embedded.layout import (
    PROPERTIES,
    SYSTEM_COLUMNS,
    SYSTEM_FIELDS,
    Column,
    iceberg_type,
)
from airflow_lake_provider.medallion.embedded.parquet import discard, local_path
from airflow_lake_provider.medallion.embedded.storage import storage_reported
from airflow_lake_provider.medallion.engine import Fence


def load(catalog: Catalog, dataset: DatasetName, layer: Layer) -> Table | None:
    """The dataset's table of one layer, or None where there is none."""
    try:
        return catalog.load_table(dataset.table(layer))
    except NoSuchTableError:
        return None


def drop_tables(catalog: Catalog, dataset: DatasetName, fence: Fence) -> None:
    """Drop the dataset's tables with all that lies under them: no file is present any more.

    Raises LeaseLost from the fence. Only files that were there before it are deleted, so those of whoever takes over in
    this moment and makes the tables anew stay.
    """
    for layer in LAYERS:
        table = load(catalog, dataset, layer)
        location = _staged(catalog, dataset, layer).location() if table is None else table.location()
        folder = local_path(location)
        paths = [path for path in folder.rglob("*") if not path.is_dir()]
        fence()
        if table is not None:
            with contextlib.suppress(NoSuchTableError):  # dropped by a call whose answer was lost
                catalog.drop_table(dataset.table(layer))
        discard(paths)
        for place in sorted((folder, *folder.rglob("*")), reverse=True):
            with contextlib.suppress(OSError):  # not empty, or not there
                place.rmdir()


def live_files(table: Table | None) -> list[DataFile]:
    """The data files of the current snapshot, oldest first."""
    if table is None or (snapshot := table.current_snapshot()) is None:
        return []
    entries = [
        (entry.sequence_number or 0, entry.data_file)
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]
    entries.sort(key=lambda entry: entry[0])
    return [data_file for _, data_file in entries]


def unnamed_files(table: Table) -> list[Path]:
    """The data files, manifests and metadata files in the table's folder that the table does not name."""
    snapshots = table.snapshots()
    manifests = {item.manifest_path: item for snapshot in snapshots for item in snapshot.manifests(table.io)}
    named = {snapshot.manifest_list for snapshot in snapshots} | manifests.keys()
    named |= {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for manifest in manifests.values():
        named |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)}
    # Names hold a UUID, so they tell files apart however the path to the folder is spelt.
    names = {path.rpartition("/")[2] for path in named}
    folder = local_path(table.location())
    found = (
        *folder.glob("data/*.parquet"),
        *folder.glob("metadata/*.avro"),
        *folder.glob("metadata/*.metadata.json"),
    )
    return [path for path in found if path.name not in names]


class _Remembering:
    """A transaction that keeps the metadata it has computed until it changes.

    PyIceberg computes it anew from deep copies each time it is asked for, dozens of times in a commit: seconds, for
    thousands of columns.
    """

    _table: Table
    _updates: tuple[TableUpdate, ...]
    _computed: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if self._computed is None or self._computed[0] is not self._updates:
            self._computed = (self._updates, update_table_metadata(self._table.metadata, self._updates))
        return self._computed[1]


class _Alteration(_Remembering, Transaction):
    def _register_snapshot_producer(self, producer: object) -> None:
        """PyIceberg would rebase what it knows of, and delete it after a conflict. That may be one with itself, where
        something on the way has sent the commit twice."""


class _Creation(_Remembering, CreateTableTransaction):
    pass


class TableChange:
    """A change to one table, computed and committed on the base that was current when it was begun."""

    def __init__(self, catalog: Catalog, dataset: DatasetName, layer: Layer) -> None:
        self.layer = layer
        self._catalog = catalog
        self._identifier = dataset.table(layer)
        self._base = load(catalog, dataset, layer)
        if self._base is None:
            self._transaction: Transaction = _Creation(_staged(catalog, dataset, layer))
        else:
            self._transaction = _Alteration(self._base)
        self._base_fields = {field.name: field for field in self._base.schema().fields} if self._base else {}
        self.metadata: TableMetadata = self._transaction.table_metadata
        """The table's metadata with the columns set so far."""
        self._next_id = self.metadata.last_column_id + 1
        self._new_ids: dict[tuple[str, str], int] = {}
        self._appended: list[DataFile] = []
        self._dropped: list[DataFile] = []
        self._live: list[DataFile] | None = None
        self._commit_id: uuid.UUID | None = None

    @property
    def exists(self) -> bool:
        """Whether the table was there when the change was begun."""
        return self._base is not None

    @property
    def schema(self) -> Schema:
        """The schema that the table will have, with the columns set so far."""
        return self.metadata.schema()

    @property
    def base_schema(self) -> Schema | None:
        """The schema that the table has on its base."""
        return self._base.schema() if self._base is not None else None

    @property
    def data_location(self) -> str:
        """The URI of the folder for the table's data files."""
        return f"{self.metadata.location.rstrip('/')}/data"

    def live_files(self) -> list[DataFile]:
        """The data files on the base, oldest first."""
        if self._live is None:
            self._live = live_files(self._base)
        return self._live

    def field_id(self, name: str, field_type: IcebergType) -> int:
        """The id that a data column has, or will have once ``set_columns`` names it."""
        field = self._base_fields.get(name)
        if field is not None and field.field_type == field_type:
            return field.field_id
        key = (name, str(field_type))
        if key not in self._new_ids:
            self._new_ids[key] = self._next_id
            self._next_id += 1
        return self._new_ids[key]

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Make these the table's data columns, in this order.

        A column whose type changes gets a new field id: Iceberg allows no such change in place, and old data files then
        read as null in it, so the caller rewrites them unless they hold no value there.
        """
        metadata = self.metadata
        system = [field for field in SYSTEM_FIELDS[self.layer] if field.name in SYSTEM_COLUMNS[self.layer]]
        fields = [
            NestedField(
                self.field_id(column.name, kind := iceberg_type(column.type)),
                column.name,
                kind,
                required=False,
                doc=column.doc,
            )
            for column in columns
        ]
        wanted = Schema(*system, *fields, schema_id=max(s.schema_id for s in metadata.schemas) + 1)
        current = metadata.schema()
        if current.fields == wanted.fields:
            return
        same = next((s.schema_id for s in metadata.schemas if s.fields == wanted.fields), None)
        updates = (
            (AddSchemaUpdate(schema=wanted), SetCurrentSchemaUpdate.model_validate({"schema-id": -1}))
            if same is None
            else (SetCurrentSchemaUpdate.model_validate({"schema-id": same}),)
        )
        requirements = (
            ()
            if self._base is None
            else (
                AssertCurrentSchemaId.model_validate({"current-schema-id": current.schema_id}),
                AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": metadata.last_column_id}),
            )
        )
        self._transaction._apply(updates, requirements)
        self.metadata = self._transaction.table_metadata

    def append(self, files: Iterable[DataFile]) -> None:
        """Add data files to the commit."""
        self._appended.extend(files)

    def drop(self, files: Iterable[DataFile]) -> None:
        """Take data files of the base out in the commit."""
        self._dropped.extend(files)

    def commit(self, fence: Fence, *, always: bool = False) -> bool:
        """Commit once to a table that exists, see ``create``; returns whether there was anything to commit.

        With ``always`` it gets an empty snapshot where nothing else changes: another writer's change
        that was begun on the same base is refused from then on.

        Raises CommitConflict where the table is no longer what it was (nothing was changed), LeaseLost from the fence,
        CommitUnknown where the catalog went away and the commit may or may not have taken place.
        """
        folder = local_path(self.metadata.location) / "metadata"
        try:
            with storage_reported(folder=folder):
                return self._commit(fence, always)
        except CommitUnknown:
            raise
        except Exception:
            # Not in any table. An interrupt may come right after the commit: then all stays.
            if self._commit_id is not None:
                discard(folder.glob(f"*{self._commit_id}*.avro"))
            raise

    def create(self, fence: Fence) -> bool:
        """Create the table, empty, if it is not there; returns whether it was. Raises as ``commit`` does.

        Its rows come in a commit of their own. Created together with them, by a writer that has lost its lease without
        knowing, it could follow its removal by another one: there is no older state that such a commit could be refused
        for.
        """
        if self.exists:
            return False
        with storage_reported(folder=local_path(self.metadata.location) / "metadata"):
            self._send(fence, None)
        self._base = self._catalog.load_table(self._identifier)
        self._transaction = _Alteration(self._base)
        return True

    def _commit(self, fence: Fence, always: bool) -> bool:
        snapshot_id = self._stage_snapshot(empty=always)
        if not self._transaction._updates:
            return False
        self._send(fence, snapshot_id)
        return True

    def _send(self, fence: Fence, snapshot_id: int | None) -> None:
        fence()
        try:
            self._transaction.commit_transaction()
        except LeaseLost:
            raise
        except (CommitFailedException, IcebergTableAlreadyExistsError, NoSuchTableError) as error:
            # Something on the way there may have sent it twice: then the answer is that of the second time.
            if not self._took_place(snapshot_id, error):
                raise CommitConflict(
                    f"Table {'.'.join(self._identifier)} was changed by another writer meanwhile; nothing was "
                    "committed, the work starts over on the new state."
                ) from error
        except Exception as error:
            if not isinstance(error, CatalogError) and isinstance(error, OSError):
                raise  # of the embedded catalog, while it wrote what was to be committed
            if not self._took_place(snapshot_id, error):
                # It may still do so, so what was written for it has to stay.
                raise CommitUnknown(
                    f"The commit to table {'.'.join(self._identifier)} was not confirmed ({_cause(error)}), and did "
                    "not take place so far; the next attempt finds out."
                ) from error

    def _took_place(self, snapshot_id: int | None, error: Exception) -> bool:
        """Whether a commit that ended with ``error`` is in the table after all."""
        try:
            table = self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return False
        except Exception as second:
            raise CommitUnknown(
                f"The catalog went away while table {'.'.join(self._identifier)} was committed ({_cause(error)}) and "
                "did not come back; the next attempt finds out what it holds."
            ) from second
        if table.metadata.table_uuid != self.metadata.table_uuid:
            return False
        if snapshot_id is not None:
            return table.metadata.snapshot_by_id(snapshot_id) is not None
        return table.schema().fields == self.schema.fields

    def _stage_snapshot(self, *, empty: bool) -> int | None:
        if not self._appended and not self._dropped and not empty:
            return None
        update = self._transaction.update_snapshot()
        producer = update.overwrite() if self._dropped else update.merge_append()
        self._commit_id = producer.commit_uuid
        with producer as snapshot:
            for data_file in self._dropped:
                snapshot.delete_data_file(data_file)
            for data_file in self._appended:
                snapshot.append_data_file(data_file)
        return int(producer.snapshot_id)


def _cause(error: Exception) -> str:
    return type(error.__cause__ or error).__name__


def _staged(catalog: Catalog, dataset: DatasetName, layer: Layer) -> StagedTable:
    """The table as it would be created; so far only its namespace is made."""
    _ensure_namespace(catalog, layer)
    begun = catalog.create_table_transaction(
        dataset.table(layer), schema=Schema(*SYSTEM_FIELDS[layer]), properties=PROPERTIES
    )
    assert isinstance(begun._table, StagedTable)
    return begun._table


def _ensure_namespace(catalog: Catalog, namespace: str) -> None:
    """Make the namespace unless it is there; a race with another process is no error."""
    if not catalog.namespace_exists(namespace):
        try:
            catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            return
