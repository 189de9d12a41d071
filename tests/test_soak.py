"""The sizes that the product promises, at full size: minutes, not seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import Command

pytestmark = pytest.mark.soak

READ = """
import sys
from airflow_lake_provider.medallion.reading import open_csv
with open_csv(sys.argv[1]) as source:
    rows = sum(batch.num_rows for batch in source.batches())
    print(rows, source.counts.records, source.counts.field_bytes)
"""


def _measured(*words: str) -> tuple[str, int]:
    """What a Python process prints, and its peak memory in bytes."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return output, usage.ru_maxrss * 1024


def _three_gigabytes(path: Path) -> tuple[int, int]:
    """A file of 3 GB, every tenth record with a line break in quotes; gives its records and bytes of text."""
    rows = [
        f'{n},"line one\nline ""two""",{n * 7}.25,some text that goes on for a while\n'
        if n % 10 == 0
        else f"{n},plain,{n * 7}.25,some text that goes on for a while\n"
        for n in range(100_000)
    ]
    block = "".join(rows).encode()
    notes = ('line one\nline "two"', "plain")
    rest = len(".25") + len("some text that goes on for a while")
    text = sum(len(f"{n}{n * 7}") + rest + len(notes[n % 10 != 0]) for n in range(100_000))
    times = 3_000_000_000 // len(block) + 1
    with path.open("wb") as file:
        file.write(b"id,note,amount,text\n")
        for _ in range(times):
            file.write(block)
    return 100_000 * times, text * times


def test_three_gigabytes_are_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    records, text = _three_gigabytes(path)
    output, peak = _measured("-c", READ, str(path))
    assert output.split() == [str(records), str(records), str(text)]
    assert peak < 600e6


def test_three_gigabytes_become_tables(lake: Command, tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    records, _ = _three_gigabytes(path)
    place = ("--vendor", "v", "--project", "p", "--folder", "f")
    _, peak = _measured("-m", "airflow_lake_provider.cli", "ingest", str(path), *place)
    (line,) = lake("files", "--json").lines
    assert line["status"] == "ready"
    assert line["rows"] == {"bronze": records, "silver": 100_000, "gold": 100_000}
    assert peak < 1.5e9
