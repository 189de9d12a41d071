"""Running a job apart from the worker that asked for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Protocol

from airflow_lake_provider.errors import (
    JobDied,
    JobError,
    JobStopped,
    JobTimedOut,
    LakeError,
    NoSpaceLeft,
    StorageError,
)
from airflow_lake_provider.jobs.child import HELD_STDIN
from airflow_lake_provider.jobs.process_output import LONGEST_LOG_LINE, Line, Output
from airflow_lake_provider.jobs.process_session import MemoryWatch, OomKills, Session
from airflow_lake_provider.jobs.protocol import Failure, Result, Stage, error_from, parse
from airflow_lake_provider.workspace import Workspace

_LOOK_SECONDS: Final = 0.05
_ASK_SECONDS: Final = 0.2
# A shell ends with this and the number of the signal that its last child died of.
_SHELL: Final = 128
_MORE_MEMORY: Final = "give it more memory or smaller batches"


Watch = Callable[[Stage], None]
Log = Callable[[str], None]
Stopped = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be run: a command line, the document that it works on, and its environment.

    Secrets belong into ``environment``, and nowhere else: command lines and documents can be seen. It is not shown.
    """

    argv: tuple[str, ...]
    document: Mapping[str, Any]
    environment: Mapping[str, str] = field(repr=False)


class Launcher(Protocol):
    """Runs jobs somewhere."""

    def run(self, job: Job, *, watch: Watch, log: Log, stopped: Stopped) -> dict[str, Any]:
        """Run the job to its end and give the data of its result.

        All three are called in the caller's thread: ``watch`` with each stage and ``log`` with each line of the log as
        they come, ``stopped`` every 0.2 s, which gives the reason for which the job is to be stopped, or None. Raises
        the LakeError that the job ended with, JobFailed where it was none of ours, JobDied, JobTimedOut, JobStopped
        with the reason, JobError where it cannot be started, and whatever these calls raise, after the job was killed.
        """
        ...


class ProcessLauncher:
    """Runs each job as a child process, in a session of its own that is gone when ``run`` returns, however it does.

    The path of the document, a file that its owner alone can read, is the last argument; it is written under
    ``temp_dir`` and removed in the end. The child has the job's environment and nothing of ours, none of our
    descriptors, and our working folder. ``timeout_seconds`` is how long it may take, ``memory_limit_bytes`` how much
    memory it and its descendants may use together (None: as much as there is). What is to be stopped is asked with
    SIGTERM and killed ``grace_seconds`` later; so is what goes on for that long after its result, which then stands.
    ``peak_bytes`` is the most memory that the last job was seen to use, looked at every 0.1 s, or that the
    kernel tells of one of its processes in the end.
    """

    def __init__(
        self, *, temp_dir: Path, timeout_seconds: float, memory_limit_bytes: int | None, grace_seconds: float = 10
    ) -> None:
        self.peak_bytes: int | None = None
        self._temp_dir = temp_dir
        self._timeout_seconds = timeout_seconds
        self._memory_limit_bytes = memory_limit_bytes
        self._grace_seconds = grace_seconds

    def run(self, job: Job, *, watch: Watch, log: Log, stopped: Stopped) -> dict[str, Any]:
        """See Launcher. A result counts only where the process then exits with 0, or had to be killed to exit."""
        self.peak_bytes = None
        with _document(job.document, self._temp_dir) as path:
            running = _Running(
                job,
                path,
                memory_limit=self._memory_limit_bytes,
                timeout=self._timeout_seconds,
                grace=self._grace_seconds,
            )
            try:
                running.follow(watch, log, stopped)
            finally:
                running.close()
                self.peak_bytes = running.peak_bytes
            return running.result()


@contextmanager
def _document(document: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    text = json.dumps(dict(document), allow_nan=False)
    # In a folder that any later process removes where this one is killed, and its job no longer can.
    with closing(Workspace(folder)) as workspace:
        path = workspace.path / "job.json"
        try:
            with open(path, "x", encoding="ascii", opener=_private) as file:
                file.write(text)
        except OSError as error:
            if error.errno in NoSpaceLeft.ERRNOS:
                raise NoSpaceLeft(
                    f"There is no space left in {str(folder)!r} for a job's document: make room there, and try again."
                ) from error
            raise StorageError(
                f"The document of a job cannot be written in {str(folder)!r}: {error.strerror}; set LAKE_TEMP_DIR."
            ) from error
        yield path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Running:
    """One job's process from its start to its end."""

    def __init__(self, job: Job, document: Path, *, memory_limit: int | None, timeout: float, grace: float) -> None:
        self._memory_limit = memory_limit
        self._timeout = timeout
        self._grace = grace
        self._end: Result | Failure | None = None
        self._stopped_for: LakeError | None = None
        self._kill_at = float("inf")
        self._killed = False
        self.peak_bytes = 0
        self._seconds = 0.0
        self._started = time.monotonic()
        self._process = _start(job, document)
        self._session = Session(self._process.pid)
        with ExitStack() as undo:
            undo.callback(self._reap)
            self._session.prefer_for_oom_kill()
            self._oom_kills = OomKills(self._process.pid)
            self._output = undo.enter_context(
                closing(Output(_number(self._process.stdout), _number(self._process.stderr)))
            )
            self._memory = undo.enter_context(closing(MemoryWatch(self._session, limit=memory_limit)))
            undo.callback(self._session.kill)
            self._closing = undo.pop_all()

    def follow(self, watch: Watch, log: Log, stopped: Stopped) -> None:
        """Serve the process until it has ended and everything that it wrote is handed over."""
        ask_at = look_at = self._started
        while True:
            self._hand_over(watch, log)
            now = time.monotonic()
            if now < look_at:
                continue
            look_at = now + _LOOK_SECONDS
            if self._session.has_ended():
                break
            if now >= self._kill_at:
                self._killed = True
                break
            if self._end is not None or self._stopped_for is not None:
                continue
            if now - self._started >= self._timeout:
                self._stop(
                    JobTimedOut(
                        f"The job was stopped after {_seconds(self._timeout)}, which is as long as it may take: "
                        "allow it more time or give it smaller batches."
                    )
                )
            elif now >= ask_at:
                ask_at = now + _ASK_SECONDS
                if (reason := stopped()) is not None:
                    self._stop(JobStopped(f"The job was stopped: {reason}"))
        self._seconds = time.monotonic() - self._started
        self._session.kill()
        self._output.finish()
        while not self._output.ended:
            self._hand_over(watch, log)

    def _hand_over(self, watch: Watch, log: Log) -> None:
        for line in self._output.take(_LOOK_SECONDS):
            said = _said(line)
            if said is None:
                # What only began like a line of ours may be of any length.
                for start in range(0, len(line.text) or 1, LONGEST_LOG_LINE):
                    log(line.text[start : start + LONGEST_LOG_LINE].decode("utf-8", "replace"))
            elif self._end is not None or self._stopped_for is not None:
                pass  # what is said after the end does not count
            elif isinstance(said, Stage):
                watch(said)
            else:
                self._end = said
                self._kill_at = time.monotonic() + self._grace

    def _stop(self, error: LakeError) -> None:
        self._stopped_for = error
        self._kill_at = time.monotonic() + self._grace
        self._session.signal(signal.SIGTERM)

    def close(self) -> None:
        """End the whole session, and give back everything that was taken for it."""
        self._closing.close()
        self.peak_bytes = max(self._ended.peak_bytes, self._memory.peak)

    def _reap(self) -> None:
        self._session.kill()
        self._ended = self._session.reap()
        self._process.returncode = self._ended.code
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def result(self) -> dict[str, Any]:
        """What came of it, once it is closed; see Launcher for what is raised."""
        code = self._ended.code
        killed = code == -signal.SIGKILL and (self._killed or self._memory.exceeded)
        if self._stopped_for is not None:
            raise self._stopped_for
        if isinstance(self._end, Failure):
            raise error_from(self._end.data)
        if self._end is not None and (code == 0 or killed):
            return self._end.data
        raise JobDied(
            self._how_it_died(code),
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            peak_bytes=self.peak_bytes,
        )

    def _how_it_died(self, code: int) -> str:
        after = f"after {_seconds(self._seconds)}"
        if self._memory.exceeded:
            return (
                f"The job was killed {after} because it used {_size(self.peak_bytes)} of memory, "
                f"more than the {_size(self._memory_limit or 0)} that it may: {_MORE_MEMORY}."
            )
        peak = f"its peak was {_size(self.peak_bytes)}"
        given = "without a result" if self._end is None else "and its result does not count"
        killed = code in (-signal.SIGKILL, _SHELL + signal.SIGKILL)
        how = f"{'was killed by' if code < 0 else 'ended with'} {_named(code)} {after} {given}"
        if self._oom_kills.rose() and killed:
            return f"The job {how} because memory ran out; {peak}: {_MORE_MEMORY}."
        if self._oom_kills.rose():
            return f"The job {how}, while memory ran out and the kernel killed a process; {peak}: {_MORE_MEMORY}."
        if killed:
            return f"The job {how}, as the kernel does when memory runs out; {peak}: {_MORE_MEMORY}."
        return f"The job {how}; {peak}: see the last lines of its log."


def _start(job: Job, document: Path) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [*job.argv, str(document)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**job.environment, HELD_STDIN: str(document)},
            start_new_session=True,
        )
    except OSError as error:
        raise JobError(
            f"The program {job.argv[0]!r} of a job cannot be started: {error.strerror}; see that it is installed and "
            "may be run."
        ) from error


def _number(stream: IO[bytes] | None) -> int:
    assert stream is not None
    return stream.fileno()


def _said(line: Line) -> Stage | Result | Failure | None:
    if not line.ours:
        return None
    try:
        return parse(line.text.decode("utf-8"))
    except UnicodeDecodeError:
        return None  # something else came in between: what it says cannot be relied upon


def _named(code: int) -> str:
    number = -code if code < 0 else code - _SHELL
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if code < 0 else f"exit code {code}"
    return f"signal {number} ({name})" if code < 0 else f"exit code {code} (as after {name})"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _size(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
