"""A child process with all its descendants, as one session: its signals, its end, its memory."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil  # type: ignore[import-untyped]

_SAMPLE_SECONDS: Final = 0.1
_OOM_SCORE_STEP: Final = 500
_OOM_SCORE_MOST: Final = 1000
# The kernel takes a moment to free the memory of a large process; one that hangs in a broken disk cannot be waited for.
_GONE_SECONDS: Final = 10.0
_RU_MAXRSS: Final = 1 if sys.platform == "darwin" else 1024


class End(NamedTuple):
    """How a process ended: its exit code, or the signal that killed it as a negative number, 0 where nobody knows.

    ``peak_bytes`` is the most memory that it, or one of its children alone, ever used, by the kernel's own account;
    0 where that is not more than we used ourselves, which cannot be told apart.
    """

    code: int
    peak_bytes: int


class Session:
    """The session whose leader is the child process ``pid`` of this process.

    The leader's number is its own until it is reaped, and so is the session's: nothing here may be called after that.
    A descendant that starts a session of its own is out of reach.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def members(self) -> list[int]:
        """The processes of the session, the leader and zombies included."""
        found = []
        for pid in psutil.pids():
            with suppress(OSError):
                if os.getsid(pid) == self.pid:
                    found.append(pid)
        return found

    def signal(self, number: int) -> None:
        """Send a signal to all of them."""
        # The group first, and at once, so that nothing can be forked in between; then who left the group.
        with suppress(OSError):
            os.killpg(self.pid, number)
        for pid in self.members():
            with suppress(OSError):
                if os.getpgid(pid) != self.pid:
                    os.kill(pid, number)

    def has_ended(self) -> bool:
        """Whether the leader has ended; it stays to be reaped."""
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            return True
        return not _is_alive(self.pid)  # macOS before Python 3.13

    def kill(self) -> None:
        """End all of them now, and wait until they are gone; the leader stays to be reaped."""
        deadline = time.monotonic() + _GONE_SECONDS
        self.signal(signal.SIGKILL)
        while any(_is_alive(pid) for pid in self._others_reaped()) and time.monotonic() < deadline:
            time.sleep(0.005)
            self.signal(signal.SIGKILL)

    def reap(self) -> End:
        """Wait for the leader's end and take its number off it; nothing else may be called after this."""
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            return End(0, 0)  # somebody else has; a job that went wrong gave no result either
        peak = usage.ru_maxrss * _RU_MAXRSS
        # The kernel counts in what a process was before it became another program, and that was a copy of us.
        peak = peak if peak > _own_peak() else 0
        return End(os.waitstatus_to_exitcode(status), peak)

    def _others_reaped(self) -> list[int]:
        members = self.members()
        for pid in members:
            # Orphans fall to us where we are the first process of a container.
            if pid != self.pid:
                with suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
        return members

    def memory(self) -> int:
        """The resident bytes of all of them together, pages that they share counted for each."""
        total = 0
        for pid in self.members():
            with suppress(psutil.Error, OSError):
                total += psutil.Process(pid).memory_info().rss
        return total

    def prefer_for_oom_kill(self) -> None:
        """Have the kernel take the leader, and children that it starts later, before us when memory runs out."""
        # The file exists on Linux alone; where it is closed to us, the kernel decides by size as ever.
        with suppress(OSError, ValueError):
            own = int(Path("/proc/self/oom_score_adj").read_text())
            score = min(own + _OOM_SCORE_STEP, _OOM_SCORE_MOST)
            Path(f"/proc/{self.pid}/oom_score_adj").write_text(str(score))


def _own_peak() -> int:
    with suppress(OSError):  # there is such a file on Linux alone
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RU_MAXRSS


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


class MemoryWatch:
    """Looks at a session's memory from a thread, and kills it above ``limit`` bytes (None: never).

    ``peak`` is the most that was seen, ``exceeded`` whether it was killed.
    """

    def __init__(self, session: Session, *, limit: int | None) -> None:
        self.peak = 0
        self.exceeded = False
        self._session = session
        self._limit = limit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name=f"memory of job {session.pid}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.is_set():
            used = self._session.memory()
            self.peak = max(self.peak, used)
            if self._limit is not None and used > self._limit:
                self.exceeded = True
                self._session.signal(signal.SIGKILL)
            self._stop.wait(_SAMPLE_SECONDS)


class OomKills:
    """Whether the kernel has killed a process of a process's control group for want of memory, since this was made."""

    def __init__(self, pid: int, *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._events = _memory_events(pid, proc, cgroups)
        self._before = self._count()

    def rose(self) -> bool:
        """True where it has; False where it has not, or where that cannot be known."""
        now = self._count()
        return now is not None and self._before is not None and now > self._before

    def _count(self) -> int | None:
        if self._events is None:
            return None
        try:
            counts = dict(line.split() for line in self._events.read_text().splitlines())
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            return None


def _memory_events(pid: int, proc: Path, cgroups: Path) -> Path | None:
    """The file of the unified hierarchy (version 2) with the counts of the control group."""
    if sys.platform != "linux" and proc == Path("/proc"):
        return None
    with suppress(OSError):
        for line in (proc / str(pid) / "cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                return cgroups / line.removeprefix("0::/") / "memory.events"
    return None
