"""Folders for work in progress: gone with their process, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.workspace import Workspace

_HOLD = """
import sys
from pathlib import Path
from airflow_lake_provider.workspace import Workspace
workspace = Workspace(Path(sys.argv[1]))
(workspace.path / "spilled").write_text("x")
print(workspace.path, flush=True)
sys.stdin.read()
"""


def test_it_goes_with_its_process_and_others_stay(tmp_path: Path) -> None:
    first, second = Workspace(tmp_path), Workspace(tmp_path)
    (first.path / "spilled").touch()
    first.close()
    assert list(tmp_path.iterdir()) == [second.path]
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        Workspace(tmp_path).close()
        assert (left / "spilled").exists()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    Workspace(tmp_path).close()
    assert not left.exists()


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="set LAKE_TEMP_DIR"):
        Workspace(tmp_path / "file")
