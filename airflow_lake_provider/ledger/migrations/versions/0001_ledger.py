"""The ledger: datasets, files and their events; rebuilds, runs and tasks."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE lake.datasets (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        vendor text NOT NULL,
        project text NOT NULL,
        folder text NOT NULL,
        table_name text NOT NULL CONSTRAINT datasets_table_name_key UNIQUE,
        settings jsonb NOT NULL DEFAULT '{}',
        settings_version integer NOT NULL DEFAULT 1,
        lease_owner text,
        lease_purpose text,
        lease_token text CONSTRAINT datasets_lease_token_key UNIQUE,
        lease_attempt bigint NOT NULL DEFAULT 0,
        lease_expires timestamptz,
        claimed_at timestamptz,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT datasets_name_key UNIQUE (vendor, project, folder)
    )
    """,
    """
    CREATE TABLE lake.files (
        file_id text PRIMARY KEY,
        dataset_id bigint NOT NULL REFERENCES lake.datasets (id),
        seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT files_seq_key UNIQUE,
        name text NOT NULL,
        raw_uri text NOT NULL,
        size bigint NOT NULL CONSTRAINT files_size_check CHECK (size >= 0),
        sha256 text NOT NULL,
        status text NOT NULL CONSTRAINT files_status_check CHECK (status IN (
            'uploaded', 'duplicate', 'processing', 'ready', 'failing', 'failed', 'quarantined',
            'archiving', 'archived', 'deleting', 'deleted')),
        stage text,
        attempt integer NOT NULL DEFAULT 0,
        deaths integer NOT NULL DEFAULT 0,
        alone boolean NOT NULL DEFAULT false,
        batch integer NOT NULL DEFAULT 0,
        lease_token text,
        former_status text,
        removal_requested text,
        requested_by text,
        not_before timestamptz,
        waiting boolean NOT NULL DEFAULT false,
        duplicate_of text REFERENCES lake.files (file_id),
        pending jsonb NOT NULL DEFAULT '[]',
        records bigint,
        bronze_rows bigint,
        silver_rows bigint,
        gold_rows bigint,
        rescued bigint,
        overrides jsonb NOT NULL DEFAULT '{}',
        summary jsonb,
        notes jsonb NOT NULL DEFAULT '[]',
        reason text,
        settings_version integer,
        uploaded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
    """,
    """
    CREATE UNIQUE INDEX files_same_bytes_key ON lake.files (dataset_id, sha256)
    WHERE status IN ('processing', 'ready', 'uploaded')
    """,
    """
    CREATE INDEX files_work_idx ON lake.files (dataset_id, seq)
    WHERE status IN ('uploaded', 'processing', 'archiving', 'deleting', 'failing')
    """,
    "CREATE INDEX files_waiting_idx ON lake.files (dataset_id, sha256, seq) WHERE waiting",
    "CREATE INDEX files_dataset_idx ON lake.files (dataset_id, status, seq)",
    "CREATE INDEX files_status_idx ON lake.files (status, seq)",
    """
    CREATE TABLE lake.file_events (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        dataset_id bigint NOT NULL REFERENCES lake.datasets (id),
        file_id text REFERENCES lake.files (file_id),
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        actor text NOT NULL CONSTRAINT file_events_actor_check CHECK (actor IN ('user', 'worker', 'scheduler')),
        who text,
        from_status text,
        to_status text,
        stage text,
        attempt integer,
        data jsonb NOT NULL DEFAULT '{}'
    )
    """,
    "CREATE INDEX file_events_file_idx ON lake.file_events (file_id, id)",
    "CREATE INDEX file_events_dataset_idx ON lake.file_events (dataset_id, id)",
    "CREATE INDEX file_events_at_idx ON lake.file_events (at)",
    # History is never rewritten. Deleting stays possible, since old events are cleaned up by age.
    """
    CREATE FUNCTION lake.refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'rows of %.% cannot be changed', TG_TABLE_SCHEMA, TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
    END $$
    """,
    """
    CREATE TRIGGER file_events_append_only BEFORE UPDATE ON lake.file_events
    FOR EACH STATEMENT EXECUTE FUNCTION lake.refuse_update()
    """,
    # One place sends the wake-up, so that no event can be written without it.
    """
    CREATE FUNCTION lake.notify_event() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('lake', json_build_object(
            'dataset', NEW.dataset_id, 'file', NEW.file_id, 'status', NEW.to_status, 'stage', NEW.stage)::text);
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER file_events_notify AFTER INSERT ON lake.file_events
    FOR EACH ROW EXECUTE FUNCTION lake.notify_event()
    """,
    """
    CREATE TABLE lake.runs (
        run_id text PRIMARY KEY,
        kind text NOT NULL CONSTRAINT runs_kind_check CHECK (kind IN ('pipeline', 'transform', 'maintenance')),
        name text NOT NULL,
        status text NOT NULL
            CONSTRAINT runs_status_check CHECK (status IN ('running', 'succeeded', 'failed', 'cancelled')),
        attempt integer NOT NULL DEFAULT 1,
        started_by text,
        reason text,
        data jsonb NOT NULL DEFAULT '{}',
        started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        finished_at timestamptz
    )
    """,
    "CREATE INDEX runs_name_idx ON lake.runs (kind, name, started_at)",
    """
    CREATE TABLE lake.run_nodes (
        run_id text NOT NULL REFERENCES lake.runs (run_id) ON DELETE CASCADE,
        node text NOT NULL,
        kind text NOT NULL,
        status text NOT NULL,
        rows bigint,
        reason text,
        data jsonb NOT NULL DEFAULT '{}',
        started_at timestamptz,
        finished_at timestamptz,
        PRIMARY KEY (run_id, node)
    )
    """,
    """
    CREATE TABLE lake.rebuilds (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        dataset_id bigint NOT NULL REFERENCES lake.datasets (id),
        file_id text REFERENCES lake.files (file_id),
        cause text NOT NULL CONSTRAINT rebuilds_cause_check CHECK (cause IN ('added', 'removed', 'rebuilt')),
        changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        seen_at timestamptz,
        run_id text REFERENCES lake.runs (run_id)
    )
    """,
    "CREATE INDEX rebuilds_open_idx ON lake.rebuilds (dataset_id, id) WHERE seen_at IS NULL",
    """
    CREATE TABLE lake.tasks (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        kind text NOT NULL,
        subject text NOT NULL,
        status text NOT NULL DEFAULT 'waiting'
            CONSTRAINT tasks_status_check CHECK (status IN ('waiting', 'running', 'done', 'failed')),
        due_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        attempt integer NOT NULL DEFAULT 0,
        lease_owner text,
        lease_token text,
        lease_expires timestamptz,
        reason text,
        data jsonb NOT NULL DEFAULT '{}',
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
    """,
    "CREATE UNIQUE INDEX tasks_waiting_key ON lake.tasks (kind, subject) WHERE status = 'waiting'",
    "CREATE INDEX tasks_due_idx ON lake.tasks (due_at) WHERE status IN ('waiting', 'running')",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
