"""Runs migrations on the connection it is handed; who hands it over owns the transaction and the lock."""

from __future__ import annotations

from alembic import context

from airflow_lake_provider.ledger.schema import SCHEMA, VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    version_table_schema=SCHEMA,
    include_schemas=True,
)
with context.begin_transaction():
    context.run_migrations()
