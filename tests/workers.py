"""``lake work`` in processes of its own, as a user runs it, with the jobs that they start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil  # type: ignore[import-untyped]

from airflow_lake_provider.dataset import DatasetName, Layer
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.medallion.types import ColumnType, canonical_values

T = TypeVar("T")

# Far more than anything here takes: only a test that would never end is ended by it.
PATIENCE = 600.0


class WorkProcess:
    """One ``lake work --until-idle``, started with the environment of now; what it prints is in a file."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airflow_lake_provider.cli", "work", "--until-idle"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.pid = self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.poll()

    @property
    def said(self) -> str:
        """All that it has printed."""
        return self.log.read_text("utf-8")

    def job(self) -> psutil.Process | None:
        """The job that it has running, if any."""
        try:
            for child in psutil.Process(self.pid).children():
                if "airflow_lake_provider.jobs" in child.cmdline():
                    return child
        except psutil.Error:
            pass
        return None

    def kill(self) -> None:
        """End this very process, and none of those that it has started."""
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        """Its exit code, which is waited for."""
        return self._process.wait(PATIENCE)


def work(log: Path) -> WorkProcess:
    """Run ``lake work --until-idle`` to its end."""
    process = WorkProcess(log)
    process.wait()
    return process


def awaited(look: Callable[[], T | None]) -> T:
    """What ``look`` gives once that is neither None nor False."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"{look} never came"
        time.sleep(0.005)
    return found


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended; one that only nobody has waited for yet has."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def processes_of(home: Path) -> list[psutil.Process]:
    """The workers and jobs of a lake that are there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("LAKE_HOME") == str(home) and not is_gone(process):
                found.append(process)
        except psutil.Error:
            continue
    return found


def canonical_rows(lake: Lake, dataset: DatasetName, layer: Layer) -> list[tuple[str | None, ...]]:
    """The rows of a table in its order, as the texts that tell their values apart."""
    columns, _ = lake.schema(dataset, layer)
    found: list[tuple[str | None, ...]] = []
    for batch in lake.rows(dataset, layer):
        texts = [
            canonical_values(array, ColumnType.parse(column.type))
            for array, column in zip(batch.columns, columns, strict=True)
        ]
        found += zip(*texts, strict=True)
    return found
