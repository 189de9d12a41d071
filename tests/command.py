"""Running the ``lake`` command inside the test's process."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    code: int
    output: str
    error: str

    @property
    def lines(self) -> list[Any]:
        """The JSON values that it printed, one a line."""
        return [json.loads(line) for line in self.output.splitlines()]


class Command:
    """Call it with the words of a command."""

    def __call__(self, *words: str) -> Done:
        from airflow_lake_provider.cli import main

        output, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
            try:
                code = main(words)
            except SystemExit as stop:
                code = int(stop.code or 0)
        return Done(code, output.getvalue(), error.getvalue())
