"""``python -m airflow_lake_provider.jobs DOCUMENT``: one job, its progress and its result on standard output."""

from __future__ import annotations

import gc
import logging
import sys
from typing import Any

from airflow_lake_provider.jobs.child import run_child
from airflow_lake_provider.jobs.protocol import Reporter


def _work(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    from airflow_lake_provider.jobs.document import JobDocument
    from airflow_lake_provider.jobs.work import run_job
    from airflow_lake_provider.services import Services

    def progress(file_id: str, stage: str, numbers: dict[str, Any]) -> None:
        reporter.stage(stage, {"file_id": file_id, **numbers})

    document = JobDocument.from_json(values)
    with Services() as services:
        # The worker keeps the lease alive; here it is the fence.
        lease = services.ledger.resume(document.token, lease_seconds=document.lease_seconds)
        return run_job(document, services, lease, progress)


if __name__ == "__main__":
    gc.set_threshold(200_000, *gc.get_threshold()[1:])  # importing makes hundreds of thousands of objects that stay
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sys.exit(run_child(_work))
