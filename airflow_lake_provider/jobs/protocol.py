"""What a job says on its standard output, one line each, and how it is read.

::

    STAGE <name> <JSON object>    progress, as often as there is some
    RESULT <JSON object>          the end, after which the job exits with 0
    ERROR <JSON object>           the other end, after which the job exits with 1

Everything else that a job writes is its log.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TextIO

from airflow_lake_provider import errors
from airflow_lake_provider.errors import JobDied, JobFailed, LakeError, UnreadableFile

TERMINATED: Final = 143
"""The exit code of a job that was asked to end: 128 + SIGTERM."""

# What errors carry beside their message, as attributes that are also arguments of the same name.
_ATTRIBUTES: Final[Mapping[type[LakeError], tuple[str, ...]]] = {
    UnreadableFile: ("line",),
    JobDied: ("exit_code", "signal", "peak_bytes"),
}

_NAME: Final = re.compile(r"[a-z_]+")
_STAGE: Final = re.compile(r"STAGE ([a-z_]+) (.*)", re.DOTALL)
_END: Final = re.compile(r"(RESULT|ERROR) (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Stage:
    """A job says what it does now, with numbers and names that belong to it."""

    name: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """A job has done its work; ``data`` is what it found."""

    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """A job has ended with an error; ``error_from(data)`` is the error."""

    data: dict[str, Any]


def parse(line: str) -> Stage | Result | Failure | None:
    """Read one line, with or without its end; None is log, as is whatever only begins like a line of ours."""
    line = line.removesuffix("\n").removesuffix("\r")
    if found := _STAGE.fullmatch(line):
        data = _object(found[2])
        return None if data is None else Stage(found[1], data)
    if found := _END.fullmatch(line):
        data = _object(found[2])
        if data is not None:
            return Result(data) if found[1] == "RESULT" else Failure(data)
    return None


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class WorkerGone(SystemExit):
    """Nobody reads what the job says any more, so there is nothing left to work for.

    An exit and no error, so that nothing which deals with errors keeps the job alive.
    """

    def __init__(self) -> None:
        super().__init__(TERMINATED)


class Reporter:
    """Writes a job's lines to a text stream, from any thread, each in one write and at once.

    Every method raises WorkerGone where the stream's reader is gone, ValueError for a number that is not finite or a
    name that is none, and TypeError for what JSON cannot say; then nothing was written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def stage(self, name: str, data: Mapping[str, Any]) -> None:
        """Say what the job does now; ``name`` is of the letters a to z and ``_``."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"a stage is named with the letters a to z and _, unlike {name!r}")
        self._write(f"STAGE {name} ", data)

    def result(self, data: Mapping[str, Any]) -> None:
        """Say that the work is done; nothing follows."""
        self._write("RESULT ", data)

    def error(self, error: BaseException) -> None:
        """Say what the job failed of; nothing follows. Of an error that is not ours only its type is said."""
        self._write("ERROR ", error_data(error))

    def _write(self, head: str, data: Mapping[str, Any]) -> None:
        # Escaped to ASCII there is nothing left that any reader takes for the end of a line, or that cannot be encoded.
        line = f"{head}{json.dumps(dict(data), allow_nan=False, separators=(',', ':'))}\n"
        with self._lock:
            try:
                self._stream.write(line)
                self._stream.flush()
            except BrokenPipeError:
                raise WorkerGone from None


def error_data(error: BaseException) -> dict[str, Any]:
    """An error as JSON can say it: all of a LakeError, of any other the type alone, since its text may quote a cell."""
    kind = next((kind for kind in type(error).__mro__ if _known(kind.__name__) is kind), None)
    if kind is None:
        return {"type": type(error).__name__}
    return {"type": kind.__name__, "message": str(error)} | {name: getattr(error, name) for name in _attributes(kind)}


def error_from(data: Mapping[str, Any]) -> LakeError:
    """The error that ``error_data`` was made of; JobFailed for one that is not ours, whatever the data hold."""
    name, message = data.get("type"), data.get("message")
    kind = _known(name)
    if kind is None or not isinstance(message, str):
        named = isinstance(name, str) and name.isidentifier() and len(name) <= 100
        return JobFailed(
            f"The job ended with an unexpected error of the type {name if named else 'unknown'}: its log says where."
        )
    carried = {each: data[each] for each in _attributes(kind) if type(data.get(each)) is int}
    return kind(message, **carried)


def _known(name: object) -> type[LakeError] | None:
    kind = getattr(errors, name, None) if isinstance(name, str) else None
    return kind if isinstance(kind, type) and issubclass(kind, LakeError) else None


def _attributes(kind: type[LakeError]) -> tuple[str, ...]:
    return next((names for owner, names in _ATTRIBUTES.items() if issubclass(kind, owner)), ())
