"""One claim of files whose rows have to leave the tables."""

from __future__ import annotations

from airflow_lake_provider.jobs.ingest import present_files
from airflow_lake_provider.ledger import Claim, Ledger
from airflow_lake_provider.medallion.engine import Engine


def run_removal(claim: Claim, *, ledger: Ledger, engine: Engine) -> None:
    """Take the rows of failed files out of the tables, after which the files are ``failed`` for good.

    A file that was asked to be archived or deleted goes back to its former state with a reason: that needs its bytes
    to leave storage as well. Raises LeaseLost where another worker has taken over.
    """
    failing = [file.file_id for file in claim.files if file.status == "failing"]
    for file in claim.files:
        if file.status != "failing":
            claim.refuse(file.file_id, "Files cannot be archived or deleted with this version: update the package.")
    if failing:
        with claim.keep_alive():
            engine.take_out(claim.dataset.name, present_files(ledger, claim.dataset), failing, fence=claim.check)
            claim.removed(failing)
