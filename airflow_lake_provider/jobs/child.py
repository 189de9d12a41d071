"""What a job's own process does to keep to the protocol, and to end with the worker that started it."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.jobs.protocol import TERMINATED, Reporter

HELD_STDIN: Final = "AIRFLOW_LAKE_JOB_HELD_STDIN"
"""The variable that tells a job that its worker holds its standard input open, and that its group is its own.

Its value is the path of the job's document, for the job to remove with its folder where the worker no longer can.
"""

Work = Callable[[dict[str, Any], Reporter], Mapping[str, Any]]
"""What a job does: takes the document and a reporter for its stages, gives the result."""


def run_child(work: Work) -> int:
    """Do the work of this process and give its exit code: 0 after RESULT, 1 after ERROR.

    The last argument is the path of the job's document. SIGTERM ends the process with 143, by way of ``finally``.
    """
    signal.signal(signal.SIGTERM, _terminate)
    end_with_parent()
    reporter = Reporter(take_stdout())
    try:
        reporter.result(work(json.loads(Path(sys.argv[-1]).read_bytes()), reporter))
    except Exception as error:
        print(traceback_without_values(error), file=sys.stderr, flush=True)
        reporter.error(error)
        return 1
    return 0


def _terminate(number: int, frame: object) -> NoReturn:
    # Once is enough: what cleans up is not to be interrupted by the same wish.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(TERMINATED)


def end_with_parent() -> bool:
    """From now on, end this process and its group the moment that the worker is gone, however it went.

    The worker holds the other end of the standard input open and writes nothing, so that its end is the end of input.
    Whatever else reads the standard input, here or in a child, finds it empty. Gives False, and does nothing, where no
    worker holds it: in a pod, a terminal, or the child of a job.
    """
    # Taken away, so that a child of the job that calls this does not take another input for the worker's.
    document = os.environ.pop(HELD_STDIN, None)
    if document is None or not _is_pipe(0):
        return False
    held = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(
        target=_end_at_end_of_input, args=(held, document), name="end with the worker", daemon=True
    ).start()
    return True


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _end_at_end_of_input(held: int, document: str) -> None:
    while os.read(held, 1024):
        pass
    with suppress(OSError):
        os.unlink(document)
        os.rmdir(os.path.dirname(document))
    # Nobody is left who would wait for a clean end, and a later attempt may begin any moment.
    os.killpg(os.getpgrp(), signal.SIGKILL)


def take_stdout() -> TextIO:
    """Take the standard output for the protocol; what else is printed from now on, here or in a child, is log.

    So no print of a library gets into the middle of a line, and no child holds the pipe open.
    """
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="ascii", newline="\n")


def traceback_without_values(error: BaseException) -> str:
    """The traceback with its causes, for the log; without texts of errors that are not ours, which may quote cells."""
    parts: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        text = f": {link}" if isinstance(link, LakeError) else ""
        parts.append(
            "Traceback (most recent call last):\n"
            + "".join(traceback.format_tb(link.__traceback__))
            + f"{type(link).__module__}.{type(link).__qualname__}{text}"
        )
        if isinstance(link, BaseExceptionGroup):
            parts[-1] += "".join(
                "\n  of: " + traceback_without_values(each).replace("\n", "\n  ") for each in link.exceptions
            )
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n\nafter which came:\n\n".join(reversed(parts))
