"""``python -m benchmarks``: print the table of figures and write them to ``benchmarks/results.json``.

Every line is measured side by side in one run, so that a figure does not depend on how fast the machine is today.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb

from airflow_lake_provider.dataset import LAYERS, DatasetName
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.settings import Settings
from benchmarks import data

# A process inherits the peak memory of the one that starts it, and this one has made large files: so a small one
# starts it.
_LAUNCH = """
import json, os, subprocess, sys, time
started = time.perf_counter()
process = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([time.perf_counter() - started, usage.ru_maxrss * 1024]))
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True)
class Figure:
    """One line of the table: what was measured, the figure, its limit, and what it was made of."""

    name: str
    value: float
    unit: str
    limit: float
    detail: str
    least: bool = False
    """Whether the limit is the least that is wanted, not the most that is allowed."""

    @property
    def kept(self) -> bool:
        return self.value >= self.limit if self.least else self.value <= self.limit


class Bench:
    """Measures in a lake of its own under ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.lake = Lake(Settings(home=self.home))
        self._datasets = 0

    def dataset(self) -> DatasetName:
        """A dataset that nothing has used yet."""
        self._datasets += 1
        return DatasetName("bench", "bench", f"d{self._datasets}")

    def ingest(self, path: Path, dataset: DatasetName) -> float:
        """Seconds from the file to all three layers."""
        started = time.perf_counter()
        (upload,) = self.lake.upload([path], dataset)
        assert upload.file is not None, upload.reason
        (file,) = self.lake.process(dataset, [upload.file.file_id])
        seconds = time.perf_counter() - started
        assert file.status == "ready", file.reason
        return seconds

    def command(self, *words: str) -> tuple[float, int]:
        """Wall seconds and peak memory in bytes of one ``lake`` command as a process of its own."""
        environment = {**os.environ, "LAKE_HOME": str(self.home)}
        command = [sys.executable, "-m", "airflow_lake_provider.cli", *words]
        done = subprocess.run(
            [sys.executable, "-c", _LAUNCH, *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        seconds, peak = json.loads(done.stdout.splitlines()[-1])
        return seconds, peak

    def three_layers(self) -> Figure:
        """(a) A file of 1 M rows into three layers, against DuckDB writing it to one Parquet file."""
        path = data.mixed(self.folder / "million.csv", 1_000_000)
        target = self.folder / "copy.parquet"

        def copy() -> float:
            started = time.perf_counter()
            with duckdb.connect() as connection:
                connection.execute(
                    f"COPY (SELECT * FROM read_csv('{path}', all_varchar = true)) TO '{target}' "
                    "(FORMAT parquet, COMPRESSION zstd)"
                )
            return time.perf_counter() - started

        copy(), self.ingest(path, self.dataset())
        pairs = [(self.ingest(path, self.dataset()), copy()) for _ in range(3)]
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        size = path.stat().st_size / 1e6
        return Figure(
            "1 M rows × 10, file → 3 layers / DuckDB COPY",
            ratio,
            "×",
            3.0,
            f"{size:.0f} MB: {ours:.2f} s / {theirs:.2f} s",
        )

    def memory(self) -> Figure:
        """(a) Peak memory of ``lake ingest`` of 10 M rows."""
        path = data.mixed(self.folder / "ten_million.csv", 10_000_000)
        seconds, peak = self.command("ingest", str(path), *_place(self.dataset()))
        size = path.stat().st_size / 1e9
        path.unlink()
        return Figure("10 M rows, peak memory", peak / 1e9, "GB", 1.2, f"{size:.2f} GB of CSV in {seconds:.1f} s")

    def small_into_large(self) -> Figure:
        """(b) +1,000 rows into 5 M rows, against the same into 1,000."""
        large, small = self.dataset(), self.dataset()
        self.ingest(data.mixed(self.folder / "five_million.csv", 5_000_000), large)
        (self.folder / "five_million.csv").unlink()
        self.ingest(data.mixed(self.folder / "thousand.csv", 1_000), small)
        pairs = []
        for turn in range(1, 8):
            path = data.mixed(self.folder / f"more_{turn}.csv", 1_000, first=10_000_000 * turn)
            pairs.append((self.ingest(path, large), self.ingest(path, small)))
        ratio = statistics.median(a / b for a, b in pairs[1:])
        a, b = (statistics.median(side) for side in zip(*pairs[1:], strict=True))
        return Figure("+1,000 rows into 5 M / into 1,000", ratio, "×", 2.0, f"{a:.2f} s / {b:.2f} s")

    def cold(self) -> Figure:
        """(c) ``lake ingest`` of 1,000 rows as a cold process, the embedded Postgres already up."""
        dataset = self.dataset()
        runs = []
        for turn in range(6):
            path = data.mixed(self.folder / f"cold_{turn}.csv", 1_000, first=1_000 * turn)
            runs.append(self.command("ingest", str(path), *_place(dataset))[0])
        imports = [_seconds(_import_everything) for _ in range(3)]
        file = self.lake.ledger.files(dataset)[-1]
        stages = {e.stage: e.data.get("seconds", 0.0) for e in self.lake.ledger.events(file.file_id) if e.stage}
        total = statistics.median(runs[1:])
        known = statistics.median(imports) + sum(stages.values())
        parts = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages.items())
        detail = f"imports {statistics.median(imports):.2f}, {parts}, connections and the rest {total - known:.2f}"
        return Figure("lake ingest of 1,000 rows, cold", total, "s", 2.5, detail)

    def columns(self) -> Figure:
        """(d) 5,000 columns × 500 rows."""
        path = data.wide(self.folder / "wide.csv", 5_000, 500)
        return Figure(
            "5,000 columns × 500 rows",
            self.ingest(path, self.dataset()),
            "s",
            20.0,
            f"{path.stat().st_size / 1e6:.1f} MB",
        )

    def many_files(self) -> Figure:
        """1,000 files of 1,000 rows, against one file with the same million rows."""
        paths = []
        for number in range(1_000):
            path = self.folder / "many" / f"f{number:04}.csv"
            path.parent.mkdir(exist_ok=True)
            paths.append(data.mixed(path, 1_000, first=1_000 * number))
        whole = data.mixed(self.folder / "million.csv", 1_000_000)
        many, one = self.dataset(), self.dataset()
        alone = self.ingest(whole, one)
        started = time.perf_counter()
        ids = [upload.file.file_id for upload in self.lake.upload(paths, many) if upload.file]
        uploaded = time.perf_counter() - started
        files = self.lake.process(many, ids)
        seconds = time.perf_counter() - started
        assert len(files) == 1_000
        assert {file.status for file in files} == {"ready"}
        alone = statistics.median([alone, self.ingest(whole, self.dataset())])
        commits = max(len(self.lake.catalog.load_table(many.table(layer)).snapshots()) for layer in LAYERS)
        assert commits <= 20, commits
        detail = f"{seconds:.1f} s (upload {uploaded:.1f}) / {alone:.1f} s; {commits} commits a table"
        return Figure("1,000 files × 1,000 rows / one of 1 M", seconds / alone, "×", 3.0, detail)

    def one_by_one(self) -> Figure:
        """1,000 files added to one dataset one by one: the last ones against the tenth."""
        dataset = self.dataset()
        path = self.folder / "single.csv"
        seconds = [self.ingest(data.mixed(path, 100, first=100 * turn), dataset) for turn in range(1_000)]
        tenth, last = statistics.median(seconds[7:12]), statistics.median(seconds[-5:])
        table = self.lake.catalog.load_table(dataset.table("gold"))
        snapshot = table.current_snapshot()
        assert snapshot is not None
        planning = _seconds(lambda: list(table.scan().plan_files()))
        manifests = len(snapshot.manifests(table.io))
        detail = f"{last:.2f} s / {tenth:.2f} s; {manifests} manifests, planned in {planning * 1000:.0f} ms"
        return Figure("1,000 single files: the last / the tenth", last / tenth, "×", 2.0, detail)

    def two_workers(self) -> Figure:
        """The throughput of two ``lake work`` on two datasets, against one."""

        def drained(workers: int) -> float:
            for _ in range(2):
                dataset = self.dataset()
                paths = []
                for number in range(400):
                    path = self.folder / "work" / f"f{number:04}.csv"
                    path.parent.mkdir(exist_ok=True)
                    paths.append(data.mixed(path, 1_000, first=1_000 * number))
                self.lake.upload(paths, dataset)
            environment = {**os.environ, "LAKE_HOME": str(self.home), "LAKE_BATCH_MAX_FILES": "100"}
            command = [sys.executable, "-m", "airflow_lake_provider.cli", "work", "--until-idle"]
            started = time.perf_counter()
            running = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for _ in range(workers)]
            assert [process.wait() for process in running] == [0] * workers
            return time.perf_counter() - started

        pairs = [(drained(1), drained(2)) for _ in range(2)]
        ratio = statistics.median(one / two for one, two in pairs)
        one, two = (statistics.median(side) for side in zip(*pairs, strict=True))
        return Figure(
            "two workers' throughput / one worker's", ratio, "×", 1.6, f"{one:.1f} s / {two:.1f} s", least=True
        )


def _place(dataset: DatasetName) -> list[str]:
    return ["--vendor", dataset.vendor, "--project", dataset.project, "--folder", dataset.folder]


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _import_everything() -> None:
    modules = ("medallion.embedded.engine", "catalog", "ledger.ledger", "jobs.worker", "jobs.work", "raw")
    imports = "; ".join(f"import airflow_lake_provider.{module}" for module in modules)
    subprocess.run([sys.executable, "-c", imports], check=True)


def main() -> int:
    """Measure and report; returns 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--only", nargs="*", default=[], help="names of the measurements to take")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results.json"))
    arguments = parser.parse_args()
    names = [
        "three_layers",
        "memory",
        "small_into_large",
        "cold",
        "columns",
        "many_files",
        "one_by_one",
        "two_workers",
    ]
    figures = []
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        os.chmod(folder, 0o755)  # the embedded Postgres runs as another user when we are root
        bench = Bench(Path(folder))
        try:
            for name in names:
                if arguments.only and name not in arguments.only:
                    continue
                figure: Figure = getattr(bench, name)()
                figures.append(figure)
                mark = "kept" if figure.kept else "MISSED"
                value = f"{figure.value:>7.2f} {figure.unit:<2} ({'≥' if figure.least else '≤'} {figure.limit})"
                print(f"{figure.name:<48} {value:<20} {mark:<7} {figure.detail}", flush=True)
        finally:
            bench.lake.close()
            from airflow_lake_provider.ledger.embedded import stop

            stop(bench.home)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "duckdb": duckdb.__version__}
    arguments.out.write_text(json.dumps({"machine": machine, "figures": [asdict(f) for f in figures]}, indent=2) + "\n")
    return 0 if all(figure.kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
