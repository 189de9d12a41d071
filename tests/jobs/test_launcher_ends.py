"""How jobs as processes of their own end, are stopped, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from airflow_lake_provider.errors import (
    JobDied,
    JobFailed,
    JobStopped,
    JobTimedOut,
    LeaseLost,
    UnclosedQuote,
)
from airflow_lake_provider.jobs import launcher as launcher_module
from airflow_lake_provider.jobs.launcher import Job
from airflow_lake_provider.jobs.process_session import OomKills
from airflow_lake_provider.jobs.protocol import Stage
from tests.jobs.processes import ENVIRONMENT, STUBBORN, Run, is_alive, script_job, wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.parametrize("code", [0, 1, 7])
def test_an_error_of_ours_is_raised_as_itself_whatever_the_exit_code(run: Run, code: int) -> None:
    said = json.dumps({"type": "UnclosedQuote", "message": "It is still open.", "line": 3})
    with pytest.raises(UnclosedQuote, match="still open") as caught:
        run(f"print('ERROR {said}', flush=True); raise SystemExit({code})")
    assert caught.value.line == 3


def test_any_other_error_is_a_failed_job(run: Run) -> None:
    with pytest.raises(JobFailed, match="type ZeroDivisionError: its log"):
        run("""print('ERROR {"type": "ZeroDivisionError"}'); raise SystemExit(1)""")


@pytest.mark.parametrize("code", [0, 3, 200])
def test_an_exit_without_a_result_names_the_code(run: Run, code: int) -> None:
    with pytest.raises(
        JobDied, match=rf"ended with exit code {code} after \S+ s without a result; its peak .*: see .* its log"
    ) as died:
        run(f"raise SystemExit({code})")
    assert (died.value.exit_code, died.value.signal) == (code, None)
    assert died.value.peak_bytes is not None


def test_an_error_code_after_the_result_is_a_death(run: Run) -> None:
    with pytest.raises(JobDied, match=r"exit code 3 after \S+ s and its result does not count") as died:
        run("print('RESULT {}', flush=True); raise SystemExit(3)")
    assert died.value.exit_code == 3


def test_a_kill_from_outside_is_named(run: Run) -> None:
    def kill(stage: Stage) -> None:
        os.kill(stage.data["pid"], signal.SIGKILL)

    with pytest.raises(
        JobDied, match=r"by signal 9 \(SIGKILL\) after \S+ s without a result, as the kernel does"
    ) as died:
        run(
            """
            import os, time
            block = bytearray(os.urandom(1000)) * 60_000
            time.sleep(0.3)
            print('STAGE pid {"pid": %d}' % os.getpid(), flush=True)
            time.sleep(600)
            """,
            watch=kill,
        )
    assert (died.value.exit_code, died.value.signal) == (None, 9)
    assert died.value.peak_bytes is not None
    assert 60e6 < died.value.peak_bytes == run.launcher.peak_bytes
    assert f"peak was {died.value.peak_bytes / 1e6:.0f} MB: give it more memory" in str(died.value)


def test_other_signals_are_named(run: Run) -> None:
    with pytest.raises(JobDied, match=r"signal 6 \(SIGABRT\).*see the last lines of its log") as died:
        run("import os; os.abort()")
    assert died.value.signal == signal.SIGABRT
    with pytest.raises(JobDied, match=r"killed by signal 40 "):
        run("import os; os.kill(os.getpid(), 40)")


def test_a_shell_whose_child_was_killed_tells_so_by_its_exit_code(run: Run) -> None:
    with pytest.raises(JobDied, match=r"ended with exit code 137 \(as after SIGKILL\).*when memory runs out") as died:
        run(Job(("/bin/sh", "-c", "sh -c 'kill -9 $$'; exit $?"), {}, ENVIRONMENT))
    assert (died.value.exit_code, died.value.signal) == (137, None)


@linux
def test_a_kill_by_the_kernel_is_certain_where_the_control_group_counts_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "cgroup" / "pod"
    group.mkdir(parents=True)
    events = group / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 12\noom 2\noom_kill 4\noom_group_kill 0\n")

    def counting(pid: int) -> OomKills:
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "cgroup").write_text("4:memory:/elsewhere\n0::/pod\n")
        return OomKills(pid, proc=tmp_path / "proc", cgroups=tmp_path / "cgroup")

    monkeypatch.setattr(launcher_module, "OomKills", counting)
    with pytest.raises(JobDied, match="as the kernel does"):
        run("import os; os.kill(os.getpid(), 9)")
    job = script_job(
        """
        import json, os, sys
        path = json.load(open(sys.argv[-1]))["events"]
        text = open(path).read().replace("oom_kill 4", "oom_kill 5")
        open(path, "w").write(text)
        os.kill(os.getpid(), 9)
        """,
        {"events": str(events)},
    )
    other = replace(job, argv=(*job.argv[:2], job.argv[2].replace("os.kill(os.getpid(), 9)", "sys.exit(3)")))
    with pytest.raises(JobDied, match=r"killed by signal 9 \(SIGKILL\) after .* because memory ran out; its peak"):
        run(job)
    events.write_text("oom_kill 4\n")
    with pytest.raises(
        JobDied, match=r"exit code 3 after .*, while memory ran out and the kernel killed a process; its"
    ):
        run(other)


def test_above_its_memory_the_job_is_killed_with_its_children(tmp_path: Path) -> None:
    run = Run(tmp_path / "tmp", memory_limit_bytes=150_000_000)
    with pytest.raises(JobDied, match=r"because it used \d+ MB of memory, more than the 150 MB that it may") as died:
        # Neither of the two is above the limit by itself.
        run(
            """
            import os, subprocess, sys, time
            hold = "import os, time; block = bytearray(os.urandom(1000)) * 90_000; time.sleep(600)"
            child = subprocess.Popen([sys.executable, "-c", hold])
            print('STAGE pids {"job": %d, "grandchild": %d}' % (os.getpid(), child.pid), flush=True)
            exec(hold)
            """
        )
    assert died.value.signal == signal.SIGKILL
    assert died.value.peak_bytes is not None
    assert died.value.peak_bytes > 150_000_000
    assert len(run.pids()) == 2
    assert not any(map(is_alive, run.pids()))


def test_the_peak_of_a_job_that_went_well_is_remembered(run: Run) -> None:
    run("import os, time; block = bytearray(os.urandom(1000)) * 60_000; time.sleep(0.3); print('RESULT {}')")
    assert run.launcher.peak_bytes is not None
    assert 60e6 < run.launcher.peak_bytes < 600e6


PEAKS = """
import sys, tempfile
from pathlib import Path
from airflow_lake_provider.jobs import process_session
from tests.jobs.processes import ENVIRONMENT, STUBBORN, Run, is_alive, leaving_nothing, script_job, wait_until
process_session._SAMPLE_SECONDS = 600  # so that there is one look alone, at the start
run = Run(Path(sys.argv[1]))
print(run("block = bytearray(b'x' * 1000) * 90_000; print('RESULT {}')"), run.launcher.peak_bytes)
block = bytearray(b"x" * 1000) * 200_000
run("print('RESULT {}')")
print({}, run.launcher.peak_bytes)
"""


def test_a_peak_between_two_looks_is_seen_and_is_not_that_of_the_worker(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAKS, str(tmp_path / "tmp")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    high, low = (int(line.split()[1]) for line in done.stdout.splitlines())
    assert 90e6 < high < 200e6
    assert low < 90e6


# -- stopping it -------------------------------------------------------------------------------------------------------


def test_a_silent_job_times_out(tmp_path: Path) -> None:
    run = Run(tmp_path / "tmp", timeout_seconds=0.3)
    with pytest.raises(JobTimedOut, match=r"stopped after 0\.3 s, which is as long as it may take"):
        run("import time; time.sleep(600)")


def test_a_job_that_has_closed_its_streams_times_out_too(tmp_path: Path) -> None:
    run = Run(tmp_path / "tmp", timeout_seconds=0.5)
    with pytest.raises(JobTimedOut):
        run("import os, time; os.close(1); os.close(2); time.sleep(600)")


def test_a_stop_is_asked_for_first_and_its_reason_is_given(run: Run) -> None:
    with pytest.raises(JobStopped, match="stopped: someone asked for it"):
        run(
            """
            import signal, sys, time
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            try:
                print('STAGE here {}', flush=True)
                time.sleep(600)
            finally:
                print("cleaning up", flush=True)
                print('STAGE late {}\\nRESULT {}', flush=True)
            """,
            watch=run.stop,
        )
    assert [stage.name for stage in run.stages] == ["here"]
    assert run.logged == ["cleaning up"]


def test_who_ignores_the_wish_to_end_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path / "tmp", grace_seconds=0.2)
    with pytest.raises(JobStopped):
        run(STUBBORN + "    time.sleep(600)", watch=run.stop)
    assert len(run.pids()) == 2
    assert not any(map(is_alive, run.pids()))


@pytest.mark.parametrize("end", ["print('RESULT {}')", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_what_a_job_leaves_behind_is_killed(run: Run, end: str) -> None:
    try:
        run(STUBBORN + f"    {end}")
    except JobDied:
        assert "RESULT" not in end
    assert len(run.pids()) == 2
    assert not any(map(is_alive, run.pids()))


def test_a_process_that_left_the_group_but_not_the_session_is_killed_too(run: Run) -> None:
    run(
        """
        import os, subprocess, sys
        child = subprocess.Popen(["sleep", "600"], process_group=0)
        print('STAGE pids {"grandchild": %d}' % child.pid, flush=True)
        print('RESULT {}', flush=True)
        os._exit(0)
        """
    )
    assert len(run.pids()) == 1
    assert not any(map(is_alive, run.pids()))


def test_a_pipe_that_someone_out_of_reach_holds_open_keeps_nobody_waiting(run: Run) -> None:
    try:
        result = run(
            """
            import os, subprocess
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            print('STAGE pids {"daemon": %d}' % child.pid, flush=True)
            print('RESULT {"done": true}', flush=True)
            os._exit(0)
            """
        )
        assert result == {"done": True}
        assert all(map(is_alive, run.pids()))
    finally:
        for pid in run.pids():
            os.kill(pid, signal.SIGKILL)


def test_a_result_stands_where_the_process_then_hangs_and_nothing_stops_it_any_more(tmp_path: Path) -> None:
    run = Run(tmp_path / "tmp", grace_seconds=0.5)

    def log(line: str) -> None:
        run.logged.append(line)
        run.reason = "too late"

    assert run(STUBBORN + """    print('RESULT {"n": 1}\\nlog', flush=True); time.sleep(600)""", log=log) == {"n": 1}
    assert run.logged == ["log"]
    assert not any(map(is_alive, run.pids()))
    run.reason = None
    with pytest.raises(UnclosedQuote):
        run("""import time; print('ERROR {"type": "UnclosedQuote", "message": "m"}', flush=True); time.sleep(600)""")


@pytest.mark.parametrize("error", [LeaseLost("taken over"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("caller", ["watch", "log", "stopped"])
def test_what_the_caller_raises_ends_the_job_first(run: Run, caller: str, error: BaseException) -> None:
    def fail(*_: object) -> None:
        if caller != "stopped" or run.stages:
            raise error

    def keep(stage: Stage) -> None:
        run.stages.append(stage)
        if caller == "watch":
            fail()

    with pytest.raises(type(error)) as caught:
        run(
            STUBBORN + "    print('log', flush=True); time.sleep(600)",
            watch=keep,
            **({} if caller == "watch" else {caller: fail}),
        )
    assert caught.value is error
    assert len(run.pids()) == 2
    assert not any(map(is_alive, run.pids()))


def test_an_interrupt_between_two_lines_ends_the_job(run: Run) -> None:
    def interrupt(stage: Stage) -> None:
        run.stages.append(stage)
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()

    with pytest.raises(KeyboardInterrupt):
        run(STUBBORN + "    time.sleep(600)", watch=interrupt)
    assert not any(map(is_alive, run.pids()))


def test_a_job_whose_threads_cannot_be_started_is_ended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(launcher_module, "MemoryWatch", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        run("import time; time.sleep(600)")


# -- the worker's end --------------------------------------------------------------------------------------------------

WORKER = """
import sys
from pathlib import Path
from tests.jobs.processes import ENVIRONMENT, STUBBORN, Run, is_alive, leaving_nothing, script_job, wait_until
job = script_job('''
import multiprocessing, os, signal, subprocess, sys, time
from airflow_lake_provider.jobs.child import run_child
def work(document, reporter):
    # Grandchildren of both kinds, one of which ignores a friendly signal; neither knows of the worker.
    inner = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE)
    other.stdout.readline()
    forked = os.fork()
    if forked == 0:
        time.sleep(600)
    reporter.stage("pids", {"job": os.getpid(), "other": other.pid, "forked": forked})
    time.sleep(600)
sys.exit(run_child(work))
''')
run = Run(Path(sys.argv[1]))
def watch(stage):
    print(*stage.data.values(), flush=True)
run(job, watch=watch)
"""


def test_a_job_and_its_children_end_with_a_worker_that_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "of the worker"
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        pids = [int(pid) for pid in worker.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(is_alive, pids))
        worker.kill()
    assert wait_until(lambda: not any(map(is_alive, pids)))
    assert list(folder.iterdir()) == []


def test_twenty_jobs_leave_nothing_behind(run: Run, tmp_path: Path) -> None:
    run("print('RESULT {}')")
    before = (psutil.Process().num_fds(), threading.active_count(), list((tmp_path / "tmp").iterdir()))
    for _ in range(10):
        assert run("print('RESULT {}')") == {}
        with pytest.raises(JobDied):
            run("raise SystemExit(3)")
    assert (psutil.Process().num_fds(), threading.active_count(), list((tmp_path / "tmp").iterdir())) == before


def test_two_jobs_at_a_time_do_not_hold_each_other_up(tmp_path: Path) -> None:
    results: dict[int, Any] = {}

    def work(n: int) -> None:
        time.sleep(n / 100)
        results[n] = Run(tmp_path / "tmp")(f"import time; time.sleep(0.1); print('RESULT {json.dumps({'n': n})}')")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: {"n": n} for n in range(4)}
