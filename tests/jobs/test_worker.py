"""The worker with real job processes: progress as it happens, deaths, stops, and who is to blame for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import LeaseLost
from airflow_lake_provider.jobs.document import JobDocument
from airflow_lake_provider.jobs.launcher import ProcessLauncher
from airflow_lake_provider.jobs.runners import HereRunner, LaunchedRunner, Runner, job_environment
from airflow_lake_provider.jobs.worker import Worker
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.ledger import File, Lease
from airflow_lake_provider.medallion.engine import Progress
from airflow_lake_provider.settings import Secret, Settings

NAME = DatasetName.parse("v/p/f")


def upload(lake: Lake, folder: Path, *texts: str, dataset: DatasetName = NAME) -> list[str]:
    paths = []
    for number, text in enumerate(texts):
        path = folder / f"{dataset.folder}_{len(list(folder.iterdir()))}_{number}.csv"
        path.write_text(text)
        paths.append(path)
    return [item.file.file_id for item in lake.upload(paths, dataset) if item.file is not None]


def launched(lake: Lake, **options: Any) -> LaunchedRunner:
    settings = {"timeout_seconds": 120.0, "memory_limit_bytes": None, **options}
    return LaunchedRunner(lake, ProcessLauncher(temp_dir=lake.settings.temp_dir, **settings))


def statuses(lake: Lake, ids: list[str]) -> list[str]:
    return [file.status for file in lake.ledger.by_ids(ids)]


def job_process() -> psutil.Process | None:
    """The job that this process has running, if any."""
    for child in psutil.Process().children():
        try:
            if "airflow_lake_provider.jobs" in child.cmdline():
                return child
        except psutil.Error:
            continue
    return None


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


class Blaming:
    """A runner whose jobs die whenever the file with a certain text in its name is among theirs."""

    def __init__(self, inner: Runner, poison: str) -> None:
        self._inner = inner
        self._poison = poison
        self.batches: list[int] = []

    def run(
        self, document: JobDocument, lease: Lease, *, progress: Progress, stopped: Callable[[], str | None]
    ) -> dict[str, Any]:
        from airflow_lake_provider.errors import JobDied

        self.batches.append(len(document.files))
        if document.kind == "ingest" and any(self._poison in file.name for file in document.files):
            raise JobDied("The job was killed by signal 9 (SIGKILL) after 1 s without a result.", signal=9)
        return self._inner.run(document, lease, progress=progress, stopped=stopped)


def test_a_job_of_its_own_makes_files_ready_and_its_stages_are_events(opened: Lake, tmp_path: Path) -> None:
    ids = upload(opened, tmp_path, "a,b\n1,x\n", "a,b\n2,y\n1,x\n")
    seen: list[tuple[str, str]] = []
    worker = Worker(opened, launched(opened), watch=lambda file, stage, numbers: seen.append((file.file_id, stage)))
    assert worker.run("idle") is None
    assert statuses(opened, ids) == ["ready", "ready"]
    assert [list(row.values()) for batch in opened.rows(NAME, "gold") for row in batch.to_pylist()] == [
        [1, "x"],
        [2, "y"],
    ]
    for file_id in ids:
        stages = [event.stage for event in opened.ledger.events(file_id) if event.stage]
        assert stages == [stage for file, stage in seen if file == file_id]
        assert [stage for stage in stages if stage != "reading"] == ["read", "bronze", "silver", "gold"]


def test_the_environment_of_a_job_has_the_settings_and_secrets_stay_out_of_sight(
    opened: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_HOST", "elsewhere")
    monkeypatch.setenv("LAKE_RAW_OPTIONS_FILE", "/nowhere")
    environment = job_environment(opened)
    assert environment["LAKE_HOME"] == str(opened.settings.home)
    assert environment["LAKE_LEDGER_DSN"] == opened.dsn
    assert not {"PG_HOST", "LAKE_RAW_OPTIONS_FILE"} & environment.keys()
    assert environment["PATH"] == os.environ["PATH"]
    for name in [name for name in os.environ if name.startswith(("LAKE_", "PG_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    again = Settings.from_env()
    assert again.ledger is not None
    assert again.ledger.reveal() == opened.dsn
    assert again.warehouse == opened.settings.warehouse

    upload(opened, tmp_path, "a\n1\n")
    seen = []

    def look(file: File, stage: str, numbers: dict[str, Any]) -> None:
        process = job_process()
        assert process is not None
        seen.append(" ".join(process.cmdline()))

    Worker(opened, launched(opened), watch=look).run("once")
    assert seen
    assert not [line for line in seen if opened.dsn in line]


def test_settings_survive_the_environment(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path,
        pg_host="db",
        pg_port=5433,
        pg_password=Secret("p w%"),
        raw_options=Secret({"key": "ä"}),
        batch_max_files=7,
        retry_seconds=2.5,
        job_memory_limit=10**9,
    )
    assert Settings.from_env(settings.environment()) == settings
    assert Settings.from_env(Settings(home=tmp_path).environment()) == Settings(home=tmp_path)


def test_a_job_that_is_killed_is_tried_again_and_its_death_is_in_the_history(opened: Lake, tmp_path: Path) -> None:
    (file_id,) = upload(opened, tmp_path, "a,b\n" + "".join(f"{n},{n}\n" for n in range(2_000)))
    kills = [1]

    def kill_once(file: File, stage: str, numbers: dict[str, Any]) -> None:
        process = job_process()
        if kills and process is not None:
            kills.pop()
            os.kill(process.pid, signal.SIGKILL)

    worker = Worker(opened, launched(opened), watch=kill_once)
    worker.run("idle")
    assert statuses(opened, [file_id]) == ["ready"]
    causes = [event.data["cause"] for event in opened.ledger.events(file_id) if "cause" in event.data]
    assert len(causes) == 1
    assert "SIGKILL" in causes[0]
    assert sum(batch.num_rows for batch in opened.rows(NAME, "gold")) == 2_000


def test_deaths_alone_count_and_the_last_one_gives_the_file_up(opened: Lake, tmp_path: Path) -> None:
    ids = upload(opened, tmp_path, *(f"a\n{n}\n" for n in range(4)))
    poison = opened.ledger.file(ids[2]).name
    runner = Blaming(HereRunner(opened), poison)
    Worker(opened, runner).run("idle")
    assert statuses(opened, ids) == ["ready", "ready", "failed", "ready"]
    reason = opened.ledger.file(ids[2]).reason or ""
    assert "died 3 times" in reason
    assert "SIGKILL" in reason
    # All together, then one by one; the last is the clean-up.
    assert sorted(runner.batches) == [1] * 7 + [4]
    rows = sorted(row["a"] for batch in opened.rows(NAME, "gold") for row in batch.to_pylist())
    assert rows == [0, 1, 3]


def test_a_job_that_takes_too_long_is_ended_and_counts_as_dead(opened: Lake, tmp_path: Path) -> None:
    (file_id,) = upload(opened, tmp_path, "a\n1\n")
    Worker(opened, launched(opened, timeout_seconds=0.3)).run("idle")
    file = opened.ledger.file(file_id)
    # Its clean-up takes too long as well, and is put off: a removal is never given up.
    assert file.status == "failing"
    assert "as long as it may take" in (file.reason or "")
    assert opened.ledger.unfinished() == 0


def test_a_worker_that_is_stopped_hands_back_at_once(opened: Lake, tmp_path: Path) -> None:
    (file_id,) = upload(opened, tmp_path, "a\n" + "1\n" * 1_000)
    worker = Worker(opened, launched(opened))
    thread = in_background(lambda: worker.run("stopped"))
    deadline = time.monotonic() + 60
    while (process := job_process()) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process is not None
    worker.stop("the test wants it so")
    thread.join(60)
    assert not thread.is_alive()
    assert not process.is_running()
    file = opened.ledger.file(file_id)
    assert (file.status, file.deaths) == ("uploaded", 0)
    assert opened.ledger.dataset(NAME).lease is None
    assert "the test wants it so" in opened.ledger.events(file_id)[-1].data["cause"]


def test_a_job_whose_lease_was_taken_commits_nothing_more(opened: Lake, tmp_path: Path, ledger_dsn: str) -> None:
    import psycopg

    (file_id,) = upload(opened, tmp_path, "a\n1\n")
    claim = opened.ledger.claim("first")
    assert claim is not None
    with psycopg.connect(ledger_dsn, autocommit=True) as admin:
        admin.execute("UPDATE lake.datasets SET lease_expires = clock_timestamp() - interval '1 s'")
    Worker(opened, HereRunner(opened)).run("idle")
    assert statuses(opened, [file_id]) == ["ready"]
    with pytest.raises(LeaseLost):
        claim.check()
    turn = Worker(opened, launched(opened)).do(claim)
    assert turn.ended == {}
    assert statuses(opened, [file_id]) == ["ready"]
    assert sum(batch.num_rows for batch in opened.rows(NAME, "gold")) == 1


def test_batches_are_bounded_by_files_and_by_bytes(ledger_dsn: str, tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    small = Settings(home=tmp_path / "home", ledger_dsn=Secret(ledger_dsn), batch_max_files=3, batch_max_bytes=100)
    with Lake(small) as lake:
        ids = upload(lake, inputs, *(f"a\n{n}\n" for n in range(5)), "a\n" + "7\n" * 60, "a\n8\n")
        runner = Blaming(HereRunner(lake), "no file at all")
        Worker(lake, runner).run("idle")
        assert statuses(lake, ids) == ["ready"] * 7
        assert runner.batches == [3, 2, 1, 1]


def test_the_command_works_until_idle_and_ends_with_143_on_sigterm(opened: Lake, tmp_path: Path) -> None:
    ids = upload(opened, tmp_path, "a\n1\n", "a\n")
    command = [sys.executable, "-m", "airflow_lake_provider.cli", "work"]
    environment = job_environment(opened)
    done = subprocess.run([*command, "--until-idle"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "v/p/f: 2 ready\n"), done.stderr
    assert statuses(opened, ids) == ["ready", "ready"]
    done = subprocess.run([*command, "--once", "--json"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        ids = upload(opened, tmp_path, "a\n3\n")
        assert running.stdout is not None
        assert running.stdout.readline() == "v/p/f: 1 ready\n"
        running.terminate()
        assert running.wait(30) == 143
