"""Many workers in processes of their own, which crash and oversleep at random, share out the work of many datasets."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from itertools import pairwise
from multiprocessing.process import BaseProcess

import psycopg
import pytest

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import LeaseLost, TransitionRefused
from airflow_lake_provider.ledger import Claim, Counts, Ledger, Outcome, resting
from airflow_lake_provider.ledger.states import RESTING
from tests.ledger.conftest import new_file

# Forking beside the threads of other libraries is safe here: the child uses none of them.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

DATASETS = [DatasetName("v", "p", f"d{number}") for number in range(20)]
FILES = 300
WORKERS = 8
LEASE = 1.5


def _clock(log: psycopg.Connection[tuple[object, ...]]) -> object:
    row = log.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    return row[0]


def _work(dsn: str, seed: int) -> None:
    chance = random.Random(seed)
    ledger = Ledger(dsn)
    with psycopg.connect(ledger.conninfo, autocommit=True) as log:
        while True:
            claim = ledger.claim(f"worker {seed}", max_files=chance.choice([5, 20]), lease_seconds=LEASE)
            if claim is None:
                time.sleep(0.2)
                continue
            since = _clock(log)
            log.execute("INSERT INTO held VALUES (%s, %s, %s, %s)", (claim.token, claim.dataset.id, since, since))
            fate = chance.random()
            try:
                if fate < 0.05:
                    os._exit(9)
                if fate < 0.08:
                    time.sleep(LEASE * 1.5)  # somebody may take over, and then nothing of this claim may be written
                _finish(claim, log, chance)
            except LeaseLost:
                continue


def _finish(claim: Claim, log: psycopg.Connection[tuple[object, ...]], chance: random.Random) -> None:
    half = len(claim.files) // 2
    for part in (claim.files[:half], claim.files[half:]):
        before = _clock(log)
        claim.check()  # from the claim until this very check the dataset was ours
        log.execute("UPDATE held SET until = %s WHERE token = %s", (before, claim.token))
        if chance.random() < 0.03:
            os._exit(9)
        if claim.kind == "removal":
            claim.removed([file.file_id for file in part])
        else:
            claim.finish([Outcome(file.file_id, "ready", counts=Counts(1, 1, 1, 1), summary={}) for file in part])
    claim.release()


@pytest.mark.slow
def test_nothing_is_held_twice_and_nothing_forgotten(ledger: Ledger, ledger_dsn: str) -> None:
    chance = random.Random(7)
    ids = [
        file.file_id
        for dataset in DATASETS
        for file in ledger.upload(dataset, [new_file() for _ in range(FILES // len(DATASETS))])
    ]
    with psycopg.connect(ledger.conninfo, autocommit=True) as log:
        log.execute("CREATE TABLE held (token text PRIMARY KEY, dataset bigint, since timestamptz, until timestamptz)")
    processes = multiprocessing.get_context("fork")
    workers: list[BaseProcess] = []
    seeds = iter(range(1000))
    crashes = 0
    deadline = time.monotonic() + 180
    to_delete = chance.sample(ids, 15)
    try:
        while True:
            crashes += sum(worker.exitcode is not None for worker in workers)
            workers = [worker for worker in workers if worker.exitcode is None]
            while len(workers) < WORKERS:
                workers.append(processes.Process(target=_work, args=(ledger_dsn, next(seeds)), daemon=True))
                workers[-1].start()
            if to_delete:
                try:
                    ledger.delete(to_delete[-1])
                    to_delete.pop()
                except TransitionRefused:
                    to_delete.pop()
            ledger.sweep()
            counts = ledger.status_counts()
            if not to_delete and sum(counts[status] for status in RESTING) == FILES:
                break
            assert time.monotonic() < deadline, counts
            time.sleep(0.25)
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join()

    assert crashes >= 3, "the workers are to crash"
    files = ledger.files()
    assert {file.file_id for file in files} == set(ids)
    assert all(map(resting, files))
    statuses = Counter(file.status for file in files)
    assert set(statuses) <= {"ready", "deleted", "failed"}
    assert statuses["ready"] >= FILES * 0.8
    assert all(file.reason and "died 3 times" in file.reason for file in files if file.status == "failed")
    finished = Counter(event.file_id for event in ledger.events() if event.to_status == "ready")
    assert max(finished.values()) == 1
    with psycopg.connect(ledger.conninfo) as log:
        spans = log.execute("SELECT dataset, since, until FROM held ORDER BY dataset, since").fetchall()
    assert len(spans) > len(DATASETS)
    for (dataset, _, until), (next_dataset, since, _) in pairwise(spans):
        assert dataset != next_dataset or until <= since, "two workers held one dataset at the same time"
