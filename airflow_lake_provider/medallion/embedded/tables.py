"""One table of a dataset, read on one base and changed in one commit.

PyIceberg's own retry rebases a late append and so makes a second copy of its rows. Here a change is computed on the
base that it was begun on and committed on that base, or not at all: the tables carry ``commit.retry.num-retries=0``,
and whoever meets CommitConflict starts over from a fresh base.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from airflow_lake_provider.dataset import DatasetName, Layer
from airflow_lake_provider.errors import CatalogUnavailable, CommitConflict, CommitUnknown
from airflow_lake_provider.medallion.embedded.parquet import discard, local_path
from airflow_lake_provider.medallion.embedded.storage import storage_reported
from airflow_lake_provider.medallion.engine import Fence
from airflow_lake_provider.medallion.types import DECIMAL_PRECISION, ColumnType

PROPERTIES = {
    "format-version": "2",
    "commit.retry.num-retries": "0",
    # The default, truncate(16), hides whether a data file holds one file's rows alone.
    "write.metadata.metrics.column._file_id": "full",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.parquet.compression-codec": "zstd",
}

# `_row_number` is laid out in gold too and dropped at once: its field id stays taken, so that a column added to
# silver and to gold in the same order has the same id in both, and a data file of the one can be a data file of the
# other.
_SYSTEM: dict[Layer, tuple[NestedField, ...]] = {
    "bronze": (
        NestedField(1, "_file_id", StringType(), required=False),
        NestedField(2, "_source_file", StringType(), required=False),
        NestedField(3, "_ingested_at", TimestamptzType(), required=False),
        NestedField(4, "_row_number", LongType(), required=False),
        NestedField(5, "_rescued", ListType(6, StringType(), element_required=False), required=False),
    ),
    "silver": (
        NestedField(1, "_file_id", StringType(), required=False),
        NestedField(2, "_row_number", LongType(), required=False),
        NestedField(3, "_row_hash", LongType(), required=False),
    ),
    "gold": (
        NestedField(1, "_file_id", StringType(), required=False),
        NestedField(2, "_row_number", LongType(), required=False),
        NestedField(3, "_row_hash", LongType(), required=False),
    ),
}
_ABSENT_IN_GOLD = "_row_number"

SYSTEM_COLUMNS: dict[Layer, tuple[str, ...]] = {
    "bronze": ("_file_id", "_source_file", "_ingested_at", "_row_number", "_rescued"),
    "silver": ("_file_id", "_row_number", "_row_hash"),
    "gold": ("_file_id", "_row_hash"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A data column of a table: its name, its type, and the original header text as its doc."""

    name: str
    type: ColumnType
    doc: str | None = None


def iceberg_type(column_type: ColumnType) -> IcebergType:
    """The Iceberg type that holds values of ``column_type``; a column without values is text."""
    match column_type.name:
        case "boolean":
            return BooleanType()
        case "bigint":
            return LongType()
        case "double":
            return DoubleType()
        case "decimal":
            return DecimalType(DECIMAL_PRECISION, column_type.scale)
        case "date":
            return DateType()
        case "timestamp":
            return TimestampType()
        case "timestamptz":
            return TimestamptzType()
        case _:
            return StringType()


def column_type(field_type: IcebergType) -> ColumnType:
    """The inverse of ``iceberg_type`` for the types of data columns."""
    match field_type:
        case BooleanType():
            return ColumnType("boolean")
        case LongType():
            return ColumnType("bigint")
        case DoubleType():
            return ColumnType("double")
        case DecimalType():
            return ColumnType("decimal", field_type.scale)
        case DateType():
            return ColumnType("date")
        case TimestampType():
            return ColumnType("timestamp")
        case TimestamptzType():
            return ColumnType("timestamptz")
        case _:
            return ColumnType("string")


def load(catalog: Catalog, dataset: DatasetName, layer: Layer) -> Table | None:
    """The dataset's table of one layer, or None where there is none."""
    try:
        return catalog.load_table(dataset.table(layer))
    except NoSuchTableError:
        return None


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
    """The data files and manifests in the table's folder that none of its snapshots names."""
    snapshots = table.snapshots()
    manifests = {item.manifest_path: item for snapshot in snapshots for item in snapshot.manifests(table.io)}
    named = {snapshot.manifest_list for snapshot in snapshots} | manifests.keys()
    for manifest in manifests.values():
        named |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)}
    # Names hold a UUID, so they tell files apart however the path to the folder is spelt.
    names = {path.rpartition("/")[2] for path in named}
    folder = local_path(table.location())
    found = (*folder.glob("data/*.parquet"), *folder.glob("metadata/*.avro"))
    return [path for path in found if path.name not in names]


def data_columns(schema: Schema) -> list[NestedField]:
    """The fields that came from files, in the table's order."""
    return [field for field in schema.fields if not field.name.startswith("_")]


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
    pass


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
            _ensure_namespace(catalog, layer)
            begun = catalog.create_table_transaction(
                self._identifier, schema=Schema(*_SYSTEM[layer]), properties=PROPERTIES
            )
            assert isinstance(begun._table, StagedTable)
            self._transaction: Transaction = _Creation(begun._table)
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
        system = [
            field for field in _SYSTEM[self.layer] if not (self.layer == "gold" and field.name == _ABSENT_IN_GOLD)
        ]
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

    def commit(self, fence: Fence, *, summary: dict[str, str] | None = None) -> bool:
        """Commit once; returns whether there was anything to commit.

        Raises CommitConflict where the table is no longer what it was (nothing was changed), LeaseLost from the fence,
        CatalogUnavailable where the catalog went away and the commit did not take place, CommitUnknown where that
        cannot be found out.
        """
        folder = local_path(self.metadata.location) / "metadata"
        try:
            with storage_reported(folder=folder):
                return self._commit(fence, summary or {})
        except CommitUnknown:
            raise
        except Exception:
            # Not in any table. An interrupt may come right after the commit: then all stays.
            if self._commit_id is not None:
                discard(folder.glob(f"*{self._commit_id}*.avro"))
            raise

    def _commit(self, fence: Fence, summary: dict[str, str]) -> bool:
        snapshot_id = self._stage_snapshot(summary)
        if not self._transaction._updates:
            return False
        fence()
        try:
            self._transaction.commit_transaction()
        except (CommitFailedException, IcebergTableAlreadyExistsError) as error:
            raise CommitConflict(
                f"Table {'.'.join(self._identifier)} was changed by another writer meanwhile; nothing was committed, "
                "the work starts over on the new state."
            ) from error
        except Exception as error:
            try:
                if self._took_place(snapshot_id):
                    return True
            except Exception as second:
                raise CommitUnknown(
                    f"The catalog went away while table {'.'.join(self._identifier)} was committed "
                    f"({type(error).__name__}) and did not come back; the next attempt finds out what it holds."
                ) from second
            if isinstance(error, OSError):
                raise
            raise CatalogUnavailable(
                f"The commit to table {'.'.join(self._identifier)} did not take place ({type(error).__name__}); "
                "nothing was changed, try again."
            ) from error
        return True

    def _stage_snapshot(self, summary: dict[str, str]) -> int | None:
        if not self._appended and not self._dropped:
            return None
        update = self._transaction.update_snapshot(snapshot_properties=summary)
        producer = update.overwrite() if self._dropped else update.merge_append()
        self._commit_id = producer.commit_uuid
        with producer as snapshot:
            for data_file in self._dropped:
                snapshot.delete_data_file(data_file)
            for data_file in self._appended:
                snapshot.append_data_file(data_file)
        return int(producer.snapshot_id)

    def _took_place(self, snapshot_id: int | None) -> bool:
        """Whether a commit of unknown outcome is in the table after all."""
        try:
            table = self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return False
        if table.metadata.table_uuid != self.metadata.table_uuid:
            return False
        if snapshot_id is not None:
            return table.metadata.snapshot_by_id(snapshot_id) is not None
        return table.schema().fields == self.schema.fields


def _ensure_namespace(catalog: Catalog, namespace: str) -> None:
    """Make the namespace unless it is there; a race with another process is no error."""
    if not catalog.namespace_exists(namespace):
        try:
            catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            return
