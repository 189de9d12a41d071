"""Uploads that are on their way: what lies in raw storage, or will, before the ledger has the file."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE lake.uploads (
        file_id text PRIMARY KEY,
        raw_uri text NOT NULL,
        expires timestamptz NOT NULL,
        abandoned boolean NOT NULL DEFAULT false
    )
    """,
    "CREATE INDEX uploads_expires_idx ON lake.uploads (expires)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
