"""Alembic migrations of the ledger; they are run by ``airflow_lake_provider.ledger.migrate``."""
