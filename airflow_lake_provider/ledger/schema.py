"""The tables of the ledger, all in the schema ``lake``, as SQLAlchemy Core sees them.

The migrations make them; a test compares the two. ``HEAD`` is the newest migration, named here so that opening a
ledger whose schema is current need not load Alembic.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from airflow_lake_provider.ledger.states import ACTORS, COUNTED, STATUSES

SCHEMA: Final = "lake"
CHANNEL: Final = "lake"
VERSION_TABLE: Final = "alembic_version"
HEAD: Final = "0003"

metadata = MetaData(schema=SCHEMA)

_NOW = text("clock_timestamp()")
_OBJECT = text("'{}'::jsonb")
_ARRAY = text("'[]'::jsonb")


def _one_of(column: str, values: tuple[str, ...]) -> str:
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


def _time(name: str, *, now: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=not now, server_default=_NOW if now else None)


datasets = Table(
    "datasets",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("vendor", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("folder", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("settings", JSONB, nullable=False, server_default=_OBJECT),
    Column("settings_version", Integer, nullable=False, server_default=text("1")),
    Column("lease_owner", Text),
    Column("lease_purpose", Text),
    Column("lease_token", Text),
    Column("lease_attempt", BigInteger, nullable=False, server_default=text("0")),
    _time("lease_expires"),
    _time("claimed_at"),
    _time("created_at", now=True),
    _time("updated_at", now=True),
    UniqueConstraint("table_name", name="datasets_table_name_key"),
    UniqueConstraint("vendor", "project", "folder", name="datasets_name_key"),
    UniqueConstraint("lease_token", name="datasets_lease_token_key"),
)

files = Table(
    "files",
    metadata,
    Column("file_id", Text, primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey(datasets.c.id), nullable=False),
    Column("seq", BigInteger, Identity(always=True), nullable=False),
    Column("name", Text, nullable=False),
    Column("raw_uri", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("stage", Text),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("deaths", Integer, nullable=False, server_default=text("0")),
    Column("alone", Boolean, nullable=False, server_default=text("false")),
    Column("batch", Integer, nullable=False, server_default=text("0")),
    Column("lease_token", Text),
    Column("former_status", Text),
    Column("removal_requested", Text),
    Column("requested_by", Text),
    _time("not_before"),
    Column("waiting", Boolean, nullable=False, server_default=text("false")),
    Column("duplicate_of", Text, ForeignKey("lake.files.file_id")),
    Column("pending", JSONB, nullable=False, server_default=_ARRAY),
    Column("records", BigInteger),
    Column("bronze_rows", BigInteger),
    Column("silver_rows", BigInteger),
    Column("gold_rows", BigInteger),
    Column("rescued", BigInteger),
    Column("overrides", JSONB, nullable=False, server_default=_OBJECT),
    Column("summary", JSONB(none_as_null=True)),
    Column("notes", JSONB, nullable=False, server_default=_ARRAY),
    Column("reason", Text),
    Column("settings_version", Integer),
    _time("uploaded_at", now=True),
    _time("updated_at", now=True),
    UniqueConstraint("seq", name="files_seq_key"),
    CheckConstraint(_one_of("status", STATUSES), name="files_status_check"),
    CheckConstraint("size >= 0", name="files_size_check"),
)
Index(
    "files_same_bytes_key",
    files.c.dataset_id,
    files.c.sha256,
    unique=True,
    postgresql_where=text(_one_of("status", tuple(sorted(COUNTED)))),
)
# What there is to do stays small however many files there have been.
Index(
    "files_work_idx",
    files.c.dataset_id,
    files.c.seq,
    postgresql_where=text("status IN ('uploaded', 'processing', 'archiving', 'deleting', 'failing')"),
)
Index("files_waiting_idx", files.c.dataset_id, files.c.sha256, files.c.seq, postgresql_where=text("waiting"))
Index("files_dataset_idx", files.c.dataset_id, files.c.status, files.c.seq)
Index("files_status_idx", files.c.status, files.c.seq)

file_events = Table(
    "file_events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey(datasets.c.id), nullable=False),
    Column("file_id", Text, ForeignKey(files.c.file_id)),
    _time("at", now=True),
    Column("actor", Text, nullable=False),
    Column("who", Text),
    Column("from_status", Text),
    Column("to_status", Text),
    Column("stage", Text),
    Column("attempt", Integer),
    Column("data", JSONB, nullable=False, server_default=_OBJECT),
    CheckConstraint(_one_of("actor", ACTORS), name="file_events_actor_check"),
)
Index("file_events_file_idx", file_events.c.file_id, file_events.c.id)
Index("file_events_dataset_idx", file_events.c.dataset_id, file_events.c.id)
Index("file_events_at_idx", file_events.c.at)

# What is on its way into raw storage, so that whatever is left there by a process that died can be found.
uploads = Table(
    "uploads",
    metadata,
    Column("file_id", Text, primary_key=True),
    Column("raw_uri", Text, nullable=False),
    Column("expires", DateTime(timezone=True), nullable=False),
    Column("abandoned", Boolean, nullable=False, server_default=text("false")),
)
Index("uploads_expires_idx", uploads.c.expires)

present_parts = Table(
    "present_parts",
    metadata,
    Column("dataset_id", BigInteger, ForeignKey(datasets.c.id), primary_key=True),
    Column("last_seq", BigInteger, primary_key=True),
    Column("settings_version", Integer, nullable=False),
    Column("number", Integer, nullable=False),
    Column("digest", Numeric, nullable=False),
    Column("joined", JSONB, nullable=False),
)

rebuilds = Table(
    "rebuilds",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("dataset_id", BigInteger, ForeignKey(datasets.c.id), nullable=False),
    Column("file_id", Text, ForeignKey(files.c.file_id)),
    Column("cause", Text, nullable=False),
    _time("changed_at", now=True),
    _time("seen_at"),
    Column("run_id", Text, ForeignKey("lake.runs.run_id")),
    CheckConstraint(_one_of("cause", ("added", "removed", "rebuilt")), name="rebuilds_cause_check"),
)
Index("rebuilds_open_idx", rebuilds.c.dataset_id, rebuilds.c.id, postgresql_where=text("seen_at IS NULL"))

runs = Table(
    "runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("1")),
    Column("started_by", Text),
    Column("reason", Text),
    Column("data", JSONB, nullable=False, server_default=_OBJECT),
    _time("started_at", now=True),
    _time("finished_at"),
    CheckConstraint(_one_of("kind", ("pipeline", "transform", "maintenance")), name="runs_kind_check"),
    CheckConstraint(_one_of("status", ("running", "succeeded", "failed", "cancelled")), name="runs_status_check"),
)
Index("runs_name_idx", runs.c.kind, runs.c.name, runs.c.started_at)

run_nodes = Table(
    "run_nodes",
    metadata,
    Column("run_id", Text, ForeignKey(runs.c.run_id, ondelete="CASCADE"), primary_key=True),
    Column("node", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("rows", BigInteger),
    Column("reason", Text),
    Column("data", JSONB, nullable=False, server_default=_OBJECT),
    _time("started_at"),
    _time("finished_at"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'waiting'")),
    _time("due_at", now=True),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("lease_owner", Text),
    Column("lease_token", Text),
    _time("lease_expires"),
    Column("reason", Text),
    Column("data", JSONB, nullable=False, server_default=_OBJECT),
    _time("created_at", now=True),
    _time("updated_at", now=True),
    CheckConstraint(_one_of("status", ("waiting", "running", "done", "failed")), name="tasks_status_check"),
)
# The same work is queued once, however often it falls due.
Index("tasks_waiting_key", tasks.c.kind, tasks.c.subject, unique=True, postgresql_where=text("status = 'waiting'"))
Index("tasks_due_idx", tasks.c.due_at, postgresql_where=text("status IN ('waiting', 'running')"))
