"""Opening the Iceberg catalog: an embedded one on the ledger's Postgres, or another that the settings name.

What the catalog reports in its own words is turned into this package's errors here, so that nothing above has to know
which catalog it is: ``CatalogUnavailable`` where trying again may help, ``CommitConflict`` where a table has changed.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy import make_url

from airflow_lake_provider.catalog.postgres import CATALOG_SCHEMA, PostgresCatalog
from airflow_lake_provider.catalog.rest import PatientRestCatalog

CATALOG_NAME = "lake"


def open_catalog(
    *,
    warehouse: str,
    dsn: str | None = None,
    catalog_type: str | None = None,
    uri: str | None = None,
    properties: dict[str, str] | None = None,
    patience_seconds: float = 30.0,
) -> Catalog:
    """Open the catalog whose tables live under ``warehouse`` (a URI).

    ``dsn`` is the Postgres that holds the embedded catalog (``postgresql://…``). With ``catalog_type`` and ``uri`` it
    is another catalog, opened by PyIceberg with ``properties`` as they are.

    Raises CatalogUnavailable where it cannot be reached for ``patience_seconds``.
    """
    address = uri or dsn
    if address is None:
        raise ValueError("open_catalog needs a DSN, or the type and URI of another catalog")
    if catalog_type == "rest" or (catalog_type is None and address.startswith("http")):
        options = {"uri": address, "warehouse": warehouse, **(properties or {})}
        return PatientRestCatalog(CATALOG_NAME, patience_seconds=patience_seconds, **options)
    if catalog_type not in (None, "sql") or not address.startswith("postgres"):
        options = {"type": catalog_type or "sql", "uri": address, "warehouse": warehouse, **(properties or {})}
        return load_catalog(CATALOG_NAME, **options)
    url = make_url(address).set(drivername="postgresql+psycopg")
    # A schema of its own keeps PyIceberg's tables apart from the ledger's in the same database.
    url = url.update_query_dict({"options": f"-c search_path={CATALOG_SCHEMA}"})
    return PostgresCatalog(
        CATALOG_NAME,
        patience_seconds=patience_seconds,
        uri=url.render_as_string(hide_password=False),
        warehouse=warehouse,
        **(properties or {}),
    )
