"""Jobs as processes of their own: how they are started, and what they say."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from airflow_lake_provider.errors import (
    JobError,
    NoSpaceLeft,
    StorageError,
)
from airflow_lake_provider.jobs import launcher
from airflow_lake_provider.jobs.launcher import Job
from airflow_lake_provider.jobs.protocol import Stage
from tests.jobs.processes import Run, script_job

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

pytestmark = pytest.mark.usefixtures("nothing_is_left")


# -- what a job says ---------------------------------------------------------------------------------------------------


def test_a_job_gets_its_document_and_gives_its_result(run: Run) -> None:
    job = script_job(
        """
        import json, sys
        document = json.load(open(sys.argv[-1]))
        print('STAGE bronze', json.dumps({"seen": document["name"]}))
        print("a line of log")
        print("another one", file=sys.stderr)
        print('RESULT', json.dumps({"length": len(document["name"])}))
        """,
        {"name": "Zoë\n\u2028"},
    )
    assert run(job) == {"length": 5}
    assert run.stages == [Stage("bronze", {"seen": "Zoë\n\u2028"})]
    assert sorted(run.logged) == ["a line of log", "another one"]


def test_stages_are_handed_over_while_the_job_runs_and_in_order(run: Run, tmp_path: Path) -> None:
    job = script_job(
        """
        import json, os, sys, time
        path = json.load(open(sys.argv[-1]))["path"]
        for n in range(3):
            print('STAGE step {"n": %d}' % n, flush=True)
            while not os.path.exists(path + str(n)):
                time.sleep(0.005)
            print("log after", n, flush=True)
        print("RESULT {}", flush=True)
        """,
        {"path": str(tmp_path / "seen")},
    )
    told: list[object] = []

    def watch(stage: Stage) -> None:
        told.append(stage.data["n"])
        assert threading.current_thread() is threading.main_thread()
        (tmp_path / f"seen{stage.data['n']}").touch()  # the job goes on only after this

    assert run(job, watch=watch, log=told.append) == {}
    assert told == [0, "log after 0", 1, "log after 1", 2, "log after 2"]


def test_a_result_of_twenty_megabytes_beside_a_flood_of_log(run: Run) -> None:
    result = run(
        """
        import sys, threading
        def flood():
            for n in range(100_000):
                sys.stderr.write("a line on the standard error %d\\n" % n)
        thread = threading.Thread(target=flood)
        thread.start()
        for n in range(1000):
            print("a line on the standard output", n)
        print('RESULT {"text": "' + "x" * 20_000_000 + '"}', flush=True)
        thread.join()
        """
    )
    assert result == {"text": "x" * 20_000_000}
    assert [line for line in run.logged if "output" in line] == [
        f"a line on the standard output {n}" for n in range(1000)
    ]
    errors = [line for line in run.logged if "error" in line]
    assert errors == [f"a line on the standard error {n}" for n in range(100_000)]


def test_a_line_of_log_without_end_is_cut(run: Run) -> None:
    run(
        """
        import sys
        for stream in (sys.stdout, sys.stderr):
            # At the second cut there is what looks like a line of the protocol.
            stream.write("x" * 131072 + 'RESULT {"false": 1}\\n')
            stream.write('STAGE ' + "y" * 131072 + "\\n")
        print('RESULT {"true": 1}')
        """
    )
    expected = ["x" * 65536, "x" * 65536, 'RESULT {"false": 1}', "STAGE " + "y" * 65530, "y" * 65536, "y" * 6]
    assert sorted(run.logged) == sorted(expected * 2)


def test_bytes_that_are_no_text_are_replaced_in_the_log_and_make_no_stage(run: Run) -> None:
    run(
        """
        import os
        os.write(1, b'caf\\xe9\\r\\nSTAGE silver {"name": "caf\\xe9"}\\nSTAGE silver {"name": "caf\\xc3\\xa9"}\\n')
        os.write(1, b"\\nRESULT {}")
        """
    )
    assert run.logged == ["caf\ufffd", 'STAGE silver {"name": "caf\ufffd"}', ""]
    assert run.stages == [Stage("silver", {"name": "café"})]


def test_nothing_counts_after_the_end(run: Run) -> None:
    result = run('print(\'RESULT {"n": 1}\\nSTAGE late {}\\nRESULT {"n": 2}\\nERROR {}\\nlog\')')
    assert result == {"n": 1}
    assert run.stages == []
    assert run.logged == ["log"]


# -- how it is started -------------------------------------------------------------------------------------------------


@linux
def test_the_environment_is_the_jobs_own_and_no_secret_is_in_the_command_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "worker-secret")
    job = script_job(
        """
        import json, os
        command = open("/proc/self/cmdline").read()
        print("RESULT", json.dumps({"environment": dict(os.environ), "command": command}))
        """,
        SECRET="job-secret",
    )
    result = run(job)
    assert result["environment"]["SECRET"] == "job-secret"
    assert "SECRET_OF_THE_WORKER" not in result["environment"]
    assert "job-secret" not in result["command"]
    assert "job-secret" not in repr(job)


def test_the_document_is_for_its_owner_alone(run: Run, tmp_path: Path) -> None:
    result = run(
        """
        import json, os, stat, sys
        path = sys.argv[-1]
        modes = [stat.S_IMODE(os.stat(each).st_mode) for each in (path, os.path.dirname(path))]
        print("RESULT", json.dumps({"path": path, "modes": modes}))
        """
    )
    path = Path(result["path"])
    assert path.parent.parent == tmp_path / "tmp"
    assert result["modes"] == [0o600, 0o700]
    assert not path.parent.exists()


@linux
def test_no_descriptor_is_inherited(run: Run) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        result = run(
            """
            import json, os
            # The listing's own descriptor is closed by now.
            paths = ["/proc/self/fd/" + number for number in os.listdir("/proc/self/fd")]
            print("RESULT", json.dumps({"open": [os.readlink(path) for path in paths if os.path.lexists(path)]}))
            """
        )
        assert len(result["open"]) == 3
        assert os.readlink(f"/proc/self/fd/{write}") not in result["open"]
    finally:
        os.close(read)
        os.close(write)


@linux
def test_a_job_leads_a_session_of_its_own_and_is_the_first_to_go_when_memory_runs_out(run: Run) -> None:
    result = run(
        """
        import json, os, time
        score = lambda: int(open("/proc/self/oom_score_adj").read())
        while score() == int(open("/proc/%d/oom_score_adj" % os.getppid()).read()):
            time.sleep(0.01)
        print("RESULT", json.dumps({"leads": os.getsid(0) == os.getpid(), "score": score()}))
        """
    )
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert result == {"leads": True, "score": min(own + 500, 1000)}


def test_a_program_that_is_not_there_is_named(run: Run) -> None:
    with pytest.raises(JobError, match=r"'/nowhere/python' of a job cannot be started: No such file"):
        run(Job(("/nowhere/python",), {}, {"SECRET": "x"}))


def test_a_place_without_room_for_the_document_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="set LAKE_TEMP_DIR"):
        Run(tmp_path / "file")("")
    if os.path.exists("/dev/full"):
        monkeypatch.setattr(launcher, "_private", lambda path, flags: os.open("/dev/full", os.O_WRONLY))
        with pytest.raises(NoSpaceLeft, match=r"no space left in .* for a job's document"):
            Run(tmp_path / "tmp")("")
