"""Killed at any step, an ingest is finished by the next command: each row once, and nothing left over.

The steps are counted, not listed here: a run that nothing harms is recorded first, and then the same run is killed at
every moment of it at which something else would be left behind, each time on a lake that was put back to its beginning.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import importlib
import io
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from airflow_lake_provider.dataset import LAYERS, DatasetName, Layer
from airflow_lake_provider.errors import NotFound
from airflow_lake_provider.jobs import recording as stages
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.ledger import File, leases
from airflow_lake_provider.medallion.embedded import bronze, merging, parquet
from airflow_lake_provider.medallion.embedded.tables import PROPERTIES
from airflow_lake_provider.settings import Secret, Settings
from tests.conftest import FAST, _in_database
from tests.faults import Moment, Recording, forked, kill_at, record
from tests.leftovers import left_elsewhere, left_in_raw, left_in_warehouse, wrong_events

pytestmark = pytest.mark.slow

NAME = DatasetName("v", "p", "f")
OVERRIDES = {"null_tokens": ["NA"]}
PAIRS = 25
FINISHED = ("ledger commit finish", "ledger commit removed")

Row = tuple[object, ...]


# -- what is run, and what has to come of it ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Csv:
    """A file with a header, and what its rows are once they are typed: in silver, and those that it brings to gold."""

    name: str
    text: str
    silver: Sequence[tuple[int, Row]] = ()
    gold: Sequence[Row] = ()
    status: str = "ready"

    @property
    def bronze(self) -> list[tuple[int, Row]]:
        records = list(csv.reader(io.StringIO(self.text)))[1:]
        return [(number, tuple(record)) for number, record in enumerate(records, start=1)]


Command = Callable[[Lake, Path], object]


@dataclass(frozen=True)
class Scenario:
    """A lake with some files, a command that is killed and given again, and how all files are to end.

    ``before`` are ingested one after the other. Where ``dies`` is given, an ingest of that file dies as well, at the
    moment ``dies_at``. ``changed`` names the files whose counts are those of the end. With ``halves`` every file that
    is written is cut in half as well.
    """

    before: tuple[Csv, ...]
    command: Command
    after: tuple[Csv, ...]
    changed: tuple[str, ...] = ()
    dies: Csv | None = None
    dies_at: str = "after catalog commit commit_table gold"
    max_attempts: int = 3
    halves: bool = False


def ingest(*files: Csv) -> Command:
    """What ``lake ingest`` does."""

    def command(lake: Lake, folder: Path) -> None:
        uploads = lake.upload([folder / file.name for file in files], NAME)
        lake.process(NAME, [upload.file.file_id for upload in uploads if upload.file is not None])

    return command


def reread(name: str) -> Command:
    """What ``lake reprocess`` does with other settings, or without any where the file has got them already."""

    def command(lake: Lake, folder: Path) -> None:
        (file,) = (file for file in lake.ledger.files(NAME) if file.name == name)
        lake.reread([file.file_id], overrides=None if file.overrides == OVERRIDES else OVERRIDES)

    return command


def clean_up(name: str) -> Command:
    """What any command does that meets a file of which rows may be in the tables."""

    def command(lake: Lake, folder: Path) -> None:
        lake.process(NAME, [file.file_id for file in lake.ledger.files(NAME) if file.name == name])

    return command


# More rows than are written at once, and a file that is larger than those that share a data file: see `_start`.
LARGE = Csv(
    "large.csv",
    "id,v\n2,b\n" + "".join(f"{n},x{n}\n" for n in range(3, 40)),
    [(1, (2, "b")), *((n - 1, (n, f"x{n}")) for n in range(3, 40))],
    [(n, f"x{n}") for n in range(3, 40)],
)
SMALL = Csv("small.csv", "id,v\n1,a\n2,b\n2,b\n", [(1, (1, "a")), (2, (2, "b"))], [(1, "a"), (2, "b")])
MORE = Csv(
    "more.csv", "id,v\n9,z\n2,b\n9,z\n3,x3\n8,y\n", [(1, (9, "z")), (2, (2, "b")), (4, (3, "x3")), (5, (8, "y"))]
)
MORE_GOLD = [(9, "z"), (8, "y")]
ONE = Csv("one.csv", "id,v\n7,g\n2,b\n", [(1, (7, "g")), (2, (2, "b"))], [(7, "g")])
TWO = Csv("two.csv", "id,v\n7,g\n6,f\n", [(1, (7, "g")), (2, (6, "f"))], [(6, "f")])


def _text(file: Csv, gold: Sequence[Row] | None = None) -> Csv:
    """The same file once ``id`` is text."""
    silver = [(number, (str(row[0]), *row[1:])) for number, row in file.silver]
    return Csv(file.name, file.text, silver, [(str(row[0]), *row[1:]) for row in (gold or file.gold)])


MOVES = Csv("moves.csv", "id,v\n1,a\nA7,q\n", [(1, ("1", "a")), (2, ("A7", "q"))], [("A7", "q")])
NULLS = "id,v\n1,NA\n2,b\n"
NULLS_BEFORE = Csv("nulls.csv", NULLS, [(1, (1, "NA")), (2, (2, "b"))], [(1, "NA"), (2, "b")])
NULLS_AFTER = Csv("nulls.csv", NULLS, [(1, (1, None)), (2, (2, "b"))], [(1, None), (2, "b")])
BLANK_BEFORE = Csv("blank.csv", 'id,v\n1,""\n3,c\n', [(1, (1, None)), (2, (3, "c"))], [(1, None), (3, "c")])
BLANK_AFTER = Csv("blank.csv", 'id,v\n1,""\n3,c\n', [(1, (1, None)), (2, (3, "c"))], [(3, "c")])
GIVEN_UP = Csv("more.csv", MORE.text, status="failed")

SCENARIOS: dict[str, Scenario] = {
    "the first files of a dataset": Scenario(
        (), ingest(SMALL, LARGE), (SMALL, LARGE), ("small.csv", "large.csv"), halves=True
    ),
    "one more file, with rows that are there": Scenario(
        (SMALL, LARGE),
        ingest(MORE),
        (SMALL, LARGE, Csv(MORE.name, MORE.text, MORE.silver, MORE_GOLD)),
        ("more.csv",),
    ),
    "more files, which share data files": Scenario(
        (SMALL,), ingest(ONE, TWO), (SMALL, ONE, TWO), ("one.csv", "two.csv")
    ),
    "one more file, while small data files are put together": Scenario(
        (SMALL, ONE, TWO),
        ingest(MORE),
        (SMALL, ONE, TWO, Csv(MORE.name, MORE.text, MORE.silver, [(9, "z"), (3, "x3"), (8, "y")])),
        ("more.csv",),
    ),
    "a file that moves a column's type": Scenario(
        (SMALL, LARGE), ingest(MOVES), (_text(SMALL), _text(LARGE), MOVES), ("moves.csv",)
    ),
    "a file that is read again with other settings": Scenario(
        (NULLS_BEFORE, BLANK_BEFORE), reread("nulls.csv"), (NULLS_AFTER, BLANK_AFTER), ("nulls.csv",)
    ),
    "the clean-up after a file that was given up": Scenario(
        (SMALL, LARGE), clean_up("more.csv"), (SMALL, LARGE, GIVEN_UP), dies=MORE, max_attempts=1
    ),
    "the clean-up after the only file": Scenario((), clean_up("more.csv"), (GIVEN_UP,), dies=MORE, max_attempts=1),
    "the clean-up after a file that has not made its tables": Scenario(
        (),
        clean_up("more.csv"),
        (GIVEN_UP,),
        dies=MORE,
        dies_at="before catalog commit commit_table bronze",
        max_attempts=1,
    ),
}


# -- in the processes that run it --------------------------------------------------------------------------------------


class Bench:
    """A place for one lake at a time, which can be put back to what it was when a scenario begins."""

    def __init__(self, root: Path, server: str, template: str) -> None:
        self.folder = root / f"bench-{os.getpid()}"
        self.home = self.folder / "home"
        self.dsn = _in_database(server, f"kill_{os.getpid()}")
        self._database = f"kill_{os.getpid()}"
        self._admin = psycopg.connect(server, autocommit=True)
        self._template = template
        self._saved: dict[str, str] = {}
        self._warm = False
        self.folder.mkdir()
        for scenario in SCENARIOS.values():
            for file in (*scenario.before, *scenario.after, *([scenario.dies] if scenario.dies else [])):
                (self.folder / file.name).write_text(file.text)

    def lake(self, scenario: Scenario) -> Lake:
        """The lake, to be opened in a process that ends."""
        return Lake(
            Settings(
                home=self.home,
                ledger_dsn=Secret(self.dsn),
                duckdb_threads=1,
                max_attempts=scenario.max_attempts,
                retry_seconds=10,
                # Neither a heartbeat nor the end of a lease may come between: what is counted is the same in each run.
                lease_seconds=3600,
            )
        )

    def run(self, scenario: Scenario, command: Command) -> None:
        """Run a command as a process would that ends with it."""
        with self.lake(scenario) as lake:
            command(lake, self.folder)

    def begin(self, name: str) -> Scenario:
        """Put the lake back to the beginning of a scenario."""
        scenario = SCENARIOS[name]
        if name not in self._saved:
            self._make(name, scenario)
        self._put_back(self._saved[name], self.folder / f"saved {name}")
        return scenario

    def expire(self) -> None:
        """Let the leases and the uploads of processes that were killed come to their end."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "UPDATE lake.datasets SET lease_expires = clock_timestamp() - interval '1 s' "
                "WHERE lease_token IS NOT NULL"
            )
            connection.execute("UPDATE lake.uploads SET expires = clock_timestamp() - interval '1 s'")

    def _warm_up(self) -> None:
        """Import here whatever a first run imports, or every run would do so again."""
        self._put_back(self._template, None)
        scenario = SCENARIOS["the first files of a dataset"]

        def first() -> list[str]:
            self.run(scenario, scenario.command)
            _checked(self, scenario)
            return list(sys.modules)

        for module in forked(first).get():
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        # What is here by now is never collected, nor copied to look at it.
        gc.freeze()
        self._warm = True

    def _make(self, name: str, scenario: Scenario) -> None:
        if not self._warm:
            self._warm_up()
        self._put_back(self._template, None)
        for file in scenario.before:
            forked(lambda file=file: self.run(scenario, ingest(file)) or True).get()
        self._save(name)
        if (dying := scenario.dies) is None:
            return
        recording = forked(lambda: record(self.home, self.dsn, lambda: self.run(scenario, ingest(dying)))[1]).get()
        last = max(index for index, moment in enumerate(recording.moments) if str(moment) == scenario.dies_at)
        self._put_back(self._saved[name], self.folder / f"saved {name}")
        ended = forked(lambda: kill_at(self.home, last, None, lambda: self.run(scenario, ingest(dying))))
        assert ended.signal == signal.SIGKILL, ended
        self.expire()
        self._save(name)

    def _save(self, name: str) -> None:
        saved = f"{self._database}_{list(SCENARIOS).index(name)}"
        self._admin.execute(f"DROP DATABASE IF EXISTS {saved}")
        self._admin.execute(f"CREATE DATABASE {saved} TEMPLATE {self._database}")
        self._saved[name] = saved
        shutil.rmtree(self.folder / f"saved {name}", ignore_errors=True)
        shutil.copytree(self.home, self.folder / f"saved {name}")

    def _put_back(self, database: str, folder: Path | None) -> None:
        self._admin.execute(f"DROP DATABASE IF EXISTS {self._database} WITH (FORCE)")
        self._admin.execute(f"CREATE DATABASE {self._database} TEMPLATE {database}")
        shutil.rmtree(self.home, ignore_errors=True)
        if folder is None:
            self.home.mkdir()
        else:
            shutil.copytree(folder, self.home)


_bench: Bench | None = None


def _start(root: Path, server: str, template: str) -> None:
    """What a process of the pool does first. What it changes in the package makes small files go every way."""
    global _bench
    bronze.SMALL_FILE_BYTES = 64
    parquet._SMALL_ROWS = 10
    merging.MERGED_TOGETHER = 2
    PROPERTIES["write.metadata.previous-versions-max"] = "1"
    leases.FIRST_DELAY = 0.0  # type: ignore[misc]
    stages._NOTE_SECONDS = 3600.0  # the stages are written at the end, and not whenever a machine is slow
    _bench = Bench(root, server, template)


def _bench_here() -> Bench:
    assert _bench is not None
    return _bench


def unharmed(name: str) -> tuple[Recording, list[str]]:
    """The recording of a scenario's command that nothing harms, and what is wrong at its end."""
    bench = _bench_here()
    scenario = bench.begin(name)
    recording = forked(lambda: record(bench.home, bench.dsn, lambda: bench.run(scenario, scenario.command))[1]).get()
    return recording, forked(lambda: _checked(bench, scenario)).get()


@dataclass(frozen=True)
class Killed:
    """How often the command was killed, and what is wrong after it ran to its end at last."""

    times: int
    wrong: list[str]


def killed(name: str, index: int, moment: Moment, again: int | None = None) -> Killed:
    """Kill the command at a moment, and once more at the moment ``again`` of the second run, and then let it run."""
    bench = _bench_here()
    scenario = bench.begin(name)
    times = 0

    def command() -> None:
        bench.run(scenario, scenario.command)

    first = forked(lambda: kill_at(bench.home, index, moment, command))
    if first.signal != signal.SIGKILL:
        return Killed(0, [f"it was not killed: {first.result or first.error}"])
    bench.expire()
    times = 1
    if again is not None:
        second = forked(lambda: kill_at(bench.home, again, None, command))
        if second.error is not None:
            return Killed(1, [second.error])
        bench.expire()
        times += second.signal == signal.SIGKILL

    def recover() -> list[str]:
        command()
        return _checked(bench, scenario)

    ended = forked(recover)
    return Killed(times, ended.get() if ended.error is None else [ended.error])


# -- what is right -----------------------------------------------------------------------------------------------------


def _checked(bench: Bench, scenario: Scenario) -> list[str]:
    """Everything that is not as the scenario has to end, each in one sentence."""
    with bench.lake(scenario) as lake, psycopg.connect(bench.dsn, autocommit=True) as connection:
        lake.ledger.sweep()
        files = lake.ledger.files(NAME)
        names = {file.file_id: file.name for file in files}
        return [
            *_wrong_files(files, scenario),
            *wrong_events(lake, files),
            *_wrong_rows(lake, names, scenario),
            *left_in_warehouse(lake, [NAME]),
            *left_in_raw(lake, files),
            *left_elsewhere(lake, connection),
        ]


def _wrong_files(files: Sequence[File], scenario: Scenario) -> Iterator[str]:
    for wanted in scenario.after:
        mine = [file for file in files if file.name == wanted.name]
        ended = [file for file in mine if file.status == wanted.status]
        if len(ended) != 1:
            yield f"{wanted.name} is {[file.status for file in mine]}, and once {wanted.status} was expected"
            continue
        for other in mine:
            if other is not ended[0] and (other.status, other.waiting, other.duplicate_of) != (
                "duplicate",
                False,
                ended[0].file_id,
            ):
                yield f"a second {wanted.name} is {other.status}, waiting: {other.waiting}"
        counts = ended[0].counts
        found = None if counts is None else (counts.records, counts.bronze, counts.silver, counts.gold)
        expected = (len(wanted.bronze), len(wanted.bronze), len(wanted.silver), len(wanted.gold))
        if wanted.name in scenario.changed and found != expected:
            yield f"{wanted.name} counts {found}, and {expected} were expected"
        if wanted.status == "failed" and (found is not None or not ended[0].reason):
            yield f"{wanted.name} failed with the counts {found} and the reason {ended[0].reason!r}"


def _wrong_rows(lake: Lake, names: dict[str, str], scenario: Scenario) -> Iterator[str]:
    ready = [file for file in scenario.after if file.status == "ready"]
    expected: dict[Layer, list[Row]] = {
        "bronze": [(file.name, number, *row) for file in ready for number, row in file.bronze],
        "silver": [(file.name, number, *row) for file in ready for number, row in file.silver],
        "gold": [(file.name, *row) for file in ready for row in file.gold],
    }
    for layer in LAYERS:
        try:
            rows = pa.Table.from_batches(lake.rows(NAME, layer, system=True)).to_pylist()
        except NotFound:
            rows = []
        found = []
        for row in rows:
            place: Row = (names[row["_file_id"]],) if layer == "gold" else (names[row["_file_id"]], row["_row_number"])
            found.append((*place, *(value for name, value in row.items() if not name.startswith("_"))))
            if row.get("_source_file", place[0]) != place[0] or row.get("_rescued"):
                yield f"{layer} has a row of {place} with {row}"
        if sorted(found, key=repr) != sorted(expected[layer], key=repr):
            yield f"{layer} has the rows {found}, and {expected[layer]} were expected"


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def benches(postgres_server: str, ledger_template: str) -> Iterator[ProcessPoolExecutor]:
    """Processes with a bench each, from which those that are killed are forked."""
    root = Path(tempfile.mkdtemp(prefix="lake-kill-", dir=FAST))
    with pytest.MonkeyPatch.context() as patch:
        # Threads of libraries do not survive a fork, and manifests are to be written in one order.
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        patch.setenv("PYICEBERG_MAX_WORKERS", "1")
        with ProcessPoolExecutor(
            min(os.cpu_count() or 1, 4),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(root, postgres_server, ledger_template),
        ) as pool:
            yield pool
    shutil.rmtree(root)


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_any_step(benches: ProcessPoolExecutor, name: str) -> None:
    recording, wrong = benches.submit(unharmed, name).result()
    assert wrong == []
    assert recording.uncounted == []
    points = recording.kill_points(halves=SCENARIOS[name].halves)
    done = [benches.submit(killed, name, point, recording.moments[point]) for point in points]
    found = [
        f"{point} {recording.moments[point]}: {fault}"
        for point, one in zip(points, done, strict=True)
        for fault in one.result().wrong
    ]
    assert found == [], "\n".join(found)


def test_killed_again_while_it_makes_up_for_it(benches: ProcessPoolExecutor) -> None:
    numbers = random.Random(20)
    recordings = {name: benches.submit(unharmed, name) for name in SCENARIOS}
    pairs = []
    for name in numbers.choices(list(SCENARIOS), k=PAIRS):
        moments = recordings[name].result()[0].moments
        # Once the files are finished there is not much left to be done again.
        finished = next(index for index, moment in enumerate(moments) if moment.name in FINISHED)
        pairs.append((name, numbers.randrange(finished), numbers.randrange(finished)))
    done = [
        benches.submit(killed, name, index, recordings[name].result()[0].moments[index], again)
        for name, index, again in pairs
    ]
    found = [f"{pair}: {fault}" for pair, one in zip(pairs, done, strict=True) for fault in one.result().wrong]
    assert found == [], "\n".join(found)
    assert sum(one.result().times == 2 for one in done) >= PAIRS * 3 // 4
