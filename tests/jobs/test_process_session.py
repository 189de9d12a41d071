"""A child process with all its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_lake_provider.jobs.process_session import OomKills, Session
from tests.jobs.processes import ENVIRONMENT, is_alive, wait_until


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        ["/bin/sh", "-c", "sleep 600 & echo; read line; exit 3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child
        finally:
            if child.returncode is None:  # else its number is no longer its own
                Session(child.pid).kill()


@pytest.mark.parametrize("waitid", [True, False], ids=["waitid", "without waitid"])
def test_the_end_is_seen_and_the_exit_code_is_still_to_be_had(
    child: subprocess.Popen[bytes], waitid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not waitid:
        monkeypatch.delattr(os, "waitid", raising=False)
    session = Session(child.pid)
    assert not session.has_ended()
    assert child.stdin is not None
    child.stdin.close()
    assert wait_until(session.has_ended)
    session.kill()
    assert session.has_ended()
    assert session.reap().code == 3
    child.returncode = 3
    assert session.has_ended()
    assert session.reap().code == 0  # nobody knows any more


def test_members_are_all_processes_of_the_session_and_killed_together(child: subprocess.Popen[bytes]) -> None:
    session = Session(child.pid)
    members = session.members()
    assert len(members) == 2
    assert child.pid in members
    assert os.getpid() not in members
    assert session.memory() > 100_000
    session.kill()
    assert not any(map(is_alive, members))
    assert child.wait() == -signal.SIGKILL


def test_nothing_is_left_to_signal_in_a_session_that_is_gone(child: subprocess.Popen[bytes]) -> None:
    session = Session(child.pid)
    session.kill()
    child.wait()
    assert not any(map(is_alive, session.members()))  # zombies that the first process of the machine is yet to reap
    assert session.memory() == 0
    session.signal(signal.SIGTERM)
    session.prefer_for_oom_kill()


@pytest.mark.skipif(sys.platform != "linux", reason="there are no subreapers elsewhere")
def test_orphans_that_fall_to_us_are_reaped() -> None:
    # In a process of its own, which takes the orphans of nobody else.
    code = """
import ctypes, subprocess, psutil
from airflow_lake_provider.jobs.process_session import Session
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER, as the first process of a container is
child = subprocess.Popen(["/bin/sh", "-c", "sleep 600 & sleep 600 & echo; exit"], stdout=subprocess.PIPE,
                         start_new_session=True)
child.stdout.readline()
session = Session(child.pid)
while not session.has_ended():
    pass
assert len(session.members()) == 3
session.kill()
child.wait()
print(len(psutil.Process().children(recursive=True)))
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


@pytest.mark.parametrize(
    ("groups", "events", "rose"),
    [
        ("0::/pod\n", "oom 3\noom_kill 3\n", True),
        ("1:memory:/other\n0::/pod\n", "oom 3\noom_kill 3\n", True),
        ("0::/pod\n", "oom 3\noom_kill 2\n", False),
        ("0::/pod\n", "oom 3\n", False),
        ("0::/pod\n", "nonsense\n", False),
        ("0::/pod\n", None, False),
        ("0::/gone\n", "oom_kill 3\n", False),
        ("4:memory:/pod\n", "oom_kill 3\n", False),
        ("", "oom_kill 3\n", False),
        (None, "oom_kill 3\n", False),
    ],
)
def test_kills_for_want_of_memory(tmp_path: Path, groups: str | None, events: str | None, rose: bool) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "pod").mkdir()
    if groups is not None:
        (tmp_path / "7" / "cgroup").write_text(groups)
    file = tmp_path / "pod" / "memory.events"
    file.write_text("low 0\noom 1\noom_kill 2\n")
    kills = OomKills(7, proc=tmp_path, cgroups=tmp_path)
    assert not kills.rose()
    if events is None:
        file.unlink()
    else:
        file.write_text(events)
    assert kills.rose() is rose


def test_a_place_that_tells_nothing_says_no() -> None:
    assert OomKills(os.getpid()).rose() is False
    assert OomKills(2**22 + 1).rose() is False
