"""What was joined of the files that a dataset's tables hold, kept in parts of a few hundred files each."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE lake.present_parts (
        dataset_id bigint NOT NULL REFERENCES lake.datasets (id),
        last_seq bigint NOT NULL,
        settings_version integer NOT NULL,
        number integer NOT NULL,
        digest numeric NOT NULL,
        joined jsonb NOT NULL,
        PRIMARY KEY (dataset_id, last_seq)
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
