"""What the tests of job processes share: small scripts as jobs, and waiting for processes to be gone."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from airflow_lake_provider.jobs.launcher import Job, ProcessLauncher
from airflow_lake_provider.jobs.protocol import Stage

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
PATIENCE = 30.0

# A job with a grandchild, both of which ignore SIGTERM and tell their numbers.
STUBBORN = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    inner = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE)
    child.stdout.readline()
    print('STAGE pids {"job": %d, "grandchild": %d}' % (os.getpid(), child.pid), flush=True)
"""


def script_job(script: str, document: Mapping[str, Any] | None = None, **environment: str) -> Job:
    """A job that runs a Python script."""
    argv = (sys.executable, "-c", textwrap.dedent(script))
    return Job(argv, document or {}, {**ENVIRONMENT, **environment})


class Run:
    """One run of a script, with what it said and logged."""

    def __init__(self, temp_dir: Path, **limits: Any) -> None:
        self.stages: list[Stage] = []
        self.logged: list[str] = []
        self.reason: str | None = None
        defaults: dict[str, Any] = {"timeout_seconds": 60, "memory_limit_bytes": None, "grace_seconds": 10}
        self.launcher = ProcessLauncher(temp_dir=temp_dir, **(defaults | limits))

    def __call__(
        self,
        job: Job | str,
        *,
        watch: Callable[[Stage], None] | None = None,
        log: Callable[[str], None] | None = None,
        stopped: Callable[[], str | None] | None = None,
    ) -> dict[str, Any]:
        return self.launcher.run(
            script_job(job) if isinstance(job, str) else job,
            watch=watch or self.stages.append,
            log=log or self.logged.append,
            stopped=stopped or (lambda: self.reason),
        )

    def stop(self, stage: Stage) -> None:
        """Watch: the first stage is the moment to stop."""
        self.stages.append(stage)
        self.reason = "someone asked for it"

    def pids(self, name: str = "pids") -> list[int]:
        """The numbers that the job told in a stage of this name."""
        return [pid for stage in self.stages if stage.name == name for pid in stage.data.values()]


@contextmanager
def leaving_nothing(temp_dir: Path) -> Iterator[None]:
    """Whatever is done in it: no thread, no descriptor, no child, no zombie and no document is left."""
    us = psutil.Process()
    threads, descriptors, children = set(threading.enumerate()), us.num_fds(), set(us.children())
    yield
    assert set(threading.enumerate()) <= threads
    assert us.num_fds() <= descriptors
    assert set(us.children()) <= children
    assert not list(temp_dir.glob("*"))


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether it comes true while anybody would still wait."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
