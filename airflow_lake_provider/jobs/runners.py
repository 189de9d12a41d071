"""Where a job runs: in this process, or apart from it through a launcher."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from airflow_lake_provider.jobs.document import JobDocument
from airflow_lake_provider.jobs.work import run_job
from airflow_lake_provider.settings import SETTINGS

if TYPE_CHECKING:
    from airflow_lake_provider.jobs.launcher import Launcher
    from airflow_lake_provider.jobs.protocol import Stage
    from airflow_lake_provider.ledger import Lease
    from airflow_lake_provider.medallion.engine import Progress
    from airflow_lake_provider.services import Services

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """One way of running a job."""

    def run(
        self, document: JobDocument, lease: Lease, *, progress: Progress, stopped: Callable[[], str | None]
    ) -> dict[str, Any]:
        """Run the job under ``lease`` and give its result, see ``run_job``; raises the LakeError that ended it.

        ``progress(file_id, stage, numbers)`` is called while it runs. ``stopped`` gives a reason once it shall end
        before its time.
        """


class HereRunner:
    """Runs jobs in this process, for commands that end with their work."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def run(
        self, document: JobDocument, lease: Lease, *, progress: Progress, stopped: Callable[[], str | None]
    ) -> dict[str, Any]:
        """See Runner. Nothing here asks ``stopped``: an interrupt ends the command and its job with it."""
        return run_job(document, self._services, lease, progress)


class LaunchedRunner:
    """Runs each job apart, as a process that may die without taking this one along."""

    def __init__(self, services: Services, launcher: Launcher) -> None:
        self._services = services
        self._launcher = launcher

    def run(
        self, document: JobDocument, lease: Lease, *, progress: Progress, stopped: Callable[[], str | None]
    ) -> dict[str, Any]:
        """See Runner."""
        from airflow_lake_provider.jobs.launcher import Job

        def watch(stage: Stage) -> None:
            numbers = dict(stage.data)
            file_id = numbers.pop("file_id", None)
            if isinstance(file_id, str):
                progress(file_id, stage.name, numbers)

        job = Job(
            argv=(sys.executable, "-m", "airflow_lake_provider.jobs"),
            document=document.to_json(),
            environment=job_environment(self._services),
        )
        return self._launcher.run(job, watch=watch, log=_log, stopped=stopped)


def job_environment(services: Services, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a job with these settings: secrets are here and nowhere else."""
    ours = {name for setting in SETTINGS for name in (setting.env, f"{setting.env}_FILE")}
    kept = {name: value for name, value in environ.items() if name not in ours}
    return {**kept, **services.settings.environment(ledger=services.dsn)}


def _log(line: str) -> None:
    logger.info("job: %s", line)
