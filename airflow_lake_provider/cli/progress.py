"""Progress while files are worked on: live lines on a terminal, plain lines elsewhere, nothing with ``--json``."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from airflow_lake_provider.ledger import File

_STAGES = ("read", "bronze", "silver", "gold")


def _numbers(stage: str, numbers: dict[str, Any]) -> str:
    words = {"records": "records", "rows": "rows", "seconds": "s"}
    return ", ".join(f"{value:,} {words[key]}" for key, value in numbers.items() if key in words and value is not None)


class Watch(AbstractContextManager["Watch"]):
    """Shows the stages of files; call ``on_stage`` for each."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Watch:
        if not self._quiet and sys.stdout.isatty():
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.fields[name]}"),
                BarColumn(bar_width=20),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def on_stage(self, file: File, stage: str, numbers: dict[str, Any]) -> None:
        """Show that a stage of a file is done, or how far one under way is."""
        if self._quiet:
            return
        text = f"{stage} {_numbers(stage, numbers)}"
        if self._live is None:
            if stage in _STAGES:
                print(f"{file.name}: {text}", flush=True)
            return
        if file.file_id not in self._tasks:
            self._tasks[file.file_id] = self._live.add_task("", total=len(_STAGES), name=file.name)
        done = _STAGES.index(stage) + 1 if stage in _STAGES else 0
        self._live.update(self._tasks[file.file_id], completed=done, description=text)
