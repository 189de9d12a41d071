"""The worker as a command: work."""

from __future__ import annotations

import argparse
import signal
from types import FrameType
from typing import TYPE_CHECKING

from airflow_lake_provider.cli.common import Commands, add_engine, command, dataset_argument, open_lake, print_json

if TYPE_CHECKING:
    from airflow_lake_provider.jobs.worker import Turn, Until


def register(commands: Commands) -> None:
    """Add the command."""
    work = command(commands, "work", _work, "Claim what waits and run it as jobs, until stopped.")
    ends = work.add_mutually_exclusive_group()
    ends.add_argument("--once", action="store_true", help="one batch, if there is one")
    ends.add_argument("--until-idle", action="store_true", help="until nothing waits or is being worked on")
    work.add_argument("--dataset", metavar="V/P/F", type=dataset_argument, help="of one dataset only")
    add_engine(work)


def _work(arguments: argparse.Namespace) -> int:
    from airflow_lake_provider.jobs.launcher import ProcessLauncher
    from airflow_lake_provider.jobs.runners import LaunchedRunner
    from airflow_lake_provider.jobs.worker import Worker

    until: Until = "once" if arguments.once else "idle" if arguments.until_idle else "stopped"
    failed = False

    def report(turn: Turn) -> None:
        nonlocal failed
        failed = failed or any(status not in ("ready", "duplicate") for status in turn.ended)
        if arguments.json:
            reason = str(turn.trouble) if turn.trouble else None
            print_json({"dataset": str(turn.dataset), "files": dict(turn.ended), "reason": reason})
        elif turn.ended:
            words = ", ".join(f"{number} {status}" for status, number in sorted(turn.ended.items()))
            print(f"{turn.dataset}: {words}", flush=True)

    with open_lake(arguments) as lake:
        settings = lake.settings
        launcher = ProcessLauncher(
            temp_dir=settings.temp_dir,
            timeout_seconds=settings.job_timeout_seconds,
            memory_limit_bytes=settings.job_memory_limit,
        )
        worker = Worker(lake, LaunchedRunner(lake, launcher))

        def stop(number: int, frame: FrameType | None) -> None:
            if worker.stopping:  # asked twice: no more patience with the job
                raise KeyboardInterrupt
            worker.stop(f"the worker got {signal.Signals(number).name}")

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        trouble = worker.run(until, dataset=arguments.dataset, report=report)
        if trouble is not None and not worker.stopping:
            raise trouble
    if worker.stopping:
        return 128 + signal.SIGTERM
    return 1 if failed else 0
