"""What a job's own process does to keep to the protocol."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_lake_provider.errors import JobDied, JobFailed, JobStopped, NotFound
from airflow_lake_provider.jobs.child import HELD_STDIN, end_with_parent, traceback_without_values
from airflow_lake_provider.jobs.protocol import Stage
from tests.jobs.processes import ENVIRONMENT, Run, is_alive, script_job, wait_until

CHILD = """
import os, signal, subprocess, sys, time
from airflow_lake_provider.errors import NotFound
from airflow_lake_provider.jobs.child import run_child
def work(document, reporter):
    {work}
sys.exit(run_child(work))
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "tmp")


def script(work: str) -> str:
    return CHILD.format(work=work.strip().replace("\n", "\n    "))


def test_the_document_goes_in_and_the_result_comes_out(run: Run) -> None:
    job = script_job(
        script("reporter.stage('silver', {'n': 1}); return {'twice': document['name'] * 2}"), {"name": "é"}
    )
    assert run(job) == {"twice": "éé"}
    assert run.stages == [Stage("silver", {"n": 1})]


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("return {}", 0, "RESULT {}\n"),
        ("raise NotFound('There is none.')", 1, 'ERROR {"type":"NotFound","message":"There is none."}\n'),
        ("raise KeyError('cell')", 1, 'ERROR {"type":"KeyError"}\n'),
        ("return {'share': float('nan')}", 1, 'ERROR {"type":"ValueError"}\n'),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)", 143, ""),
    ],
)
def test_exit_codes(tmp_path: Path, work: str, code: int, said: str) -> None:
    (tmp_path / "document").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", script(work), tmp_path / "document"],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, said)
    assert "cell" not in done.stderr.replace("raise KeyError('cell')", "")


def test_errors_come_back_through_the_launcher(run: Run) -> None:
    with pytest.raises(NotFound, match="There is none"):
        run(script("raise NotFound('There is none.')"))
    with pytest.raises(JobFailed, match="ZeroDivisionError"):
        run(script("1 / 0"))
    assert any("ZeroDivisionError" in line for line in run.logged)
    with pytest.raises(JobDied, match="exit code 4"):
        run(script("sys.exit(4)"))


def test_a_stop_lets_the_job_clean_up(run: Run) -> None:
    work = """
try:
    reporter.stage('here', {})
    time.sleep(600)
finally:
    os.kill(os.getpid(), signal.SIGTERM)
    print('cleaned up')
"""
    with pytest.raises(JobStopped):
        run(script(work), watch=run.stop)
    assert "cleaned up" in run.logged


def test_what_libraries_and_children_print_gets_into_no_line(run: Run) -> None:
    work = """
os.write(1, b"no end of line here")
subprocess.run(["echo", "from a child"], check=True)
reporter.stage("silver", {})
print('RESULT {"false": 1}')
return {"true": 1}
"""
    assert run(script(work)) == {"true": 1}
    assert run.stages == [Stage("silver", {})]
    assert run.logged == ["no end of line herefrom a child", 'RESULT {"false": 1}']


def test_the_standard_input_is_empty_for_the_job_and_its_children(run: Run) -> None:
    work = """
seen = subprocess.run(["cat"], capture_output=True, timeout=60, check=True)
return {"child": len(seen.stdout), "own": len(sys.stdin.read()), "told": "%s" in os.environ}
"""
    assert run(script(work % HELD_STDIN)) == {"child": 0, "own": 0, "told": False}


def test_a_process_without_a_worker_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HELD_STDIN, raising=False)
    assert end_with_parent() is False
    # Told so, but the input is none that anybody holds: a file, a terminal, nothing at all.
    code = "import sys; from airflow_lake_provider.jobs.child import end_with_parent; sys.exit(end_with_parent())"
    for closed in (False, True):
        done = subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" <&-' if closed else 'exec "$@"', "sh", sys.executable, "-c", code],
            env={**ENVIRONMENT, HELD_STDIN: "/nowhere"},
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0


def test_the_end_of_input_ends_the_job_even_while_it_computes(tmp_path: Path) -> None:
    document = tmp_path / "document"
    document.write_text("{}")
    work = "reporter.stage('pid', {})\nwhile True: sum(range(1000))"
    with subprocess.Popen(
        [sys.executable, "-c", script(work), str(document)],
        env={**ENVIRONMENT, HELD_STDIN: str(document)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline()
        child.stdin.write(b"not the end yet\n")
        child.stdin.flush()
        assert is_alive(child.pid)
        child.stdin.close()
        assert child.wait(60) == -signal.SIGKILL
    assert not document.exists()


def test_nobody_who_reads_ends_the_job(tmp_path: Path) -> None:
    document = tmp_path / "document"
    document.write_text("{}")
    work = "\ntry:\n    while True: reporter.stage('silver', {}); time.sleep(0.01)\nexcept Exception: time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", script(work), str(document)],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.stdout.close()
        assert wait_until(lambda: child.poll() is not None)
    assert child.returncode == 143


def test_a_traceback_names_places_and_types_and_no_values() -> None:
    cell = "".join(["sec", "ret"])

    def parse() -> None:
        try:
            int(cell)
        except ValueError as error:
            raise ExceptionGroup(cell, [KeyError(cell), NotFound("There is none.")]) from error

    try:
        try:
            parse()
        finally:
            os.stat(f"/nowhere/{cell}")
    except OSError as error:
        text = traceback_without_values(error)
    assert cell not in text
    for part in ("in parse", "builtins.ValueError", "builtins.ExceptionGroup", "builtins.KeyError", "There is none."):
        assert part in text
    assert text.index("builtins.ValueError") < text.index("ExceptionGroup") < text.index("builtins.FileNotFoundError")


def test_errors_that_are_each_others_cause_have_an_end() -> None:
    one, other = KeyError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert traceback_without_values(one).count("Traceback") == 2
