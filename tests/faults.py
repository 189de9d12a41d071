"""Killing a process at any step that leaves a trace, with proof that no step is left out.

A *step* is a transaction that is committed, or a file or folder under a lake's home that is written, renamed or
removed. Each has a moment right before it and one right after it, and a written file also one at which only half of it
is there.
:func:`record` runs something and lists those moments, together with what was on disk and in the database at each of
them. Whatever changed between two moments without having been announced is noted as uncounted, so that a new way of
writing cannot escape. :func:`kill_at` runs the same thing and kills its process, by SIGKILL, at one of those moments.

Both change the libraries of the process that they run in for good, and are meant for a forked one: see :func:`forked`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import duckdb
import psycopg
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from airflow_lake_provider.dataset import LAYERS

T = TypeVar("T")
Phase = Literal["before", "half", "after"]

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED = getattr(os, "O_TMPFILE", 0)
_COPY_TARGET = re.compile(r"\s*COPY\b.*\bTO '((?:[^']|'')*)'", re.DOTALL | re.IGNORECASE)
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")


# -- processes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended(Generic[T]):
    """How a forked process ended: with a result, by a signal, or with a traceback."""

    result: T | None = None
    signal: int | None = None
    error: str | None = None

    def get(self) -> T:
        """The result; raises RuntimeError where there is none."""
        if self.result is None:
            raise RuntimeError(self.error or f"the process was ended by signal {self.signal}")
        return self.result


def forked(work: Callable[[], T]) -> Ended[T]:
    """Run ``work`` in a fork of this process, which should have imported everything and opened nothing."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            ended: Ended[T] = Ended(result=work())
        except BaseException:
            ended = Ended(error=traceback.format_exc())
        with os.fdopen(write, "wb") as pipe:
            pipe.write(pickle.dumps(ended))
        os._exit(0)  # nothing that the parent has opened may be closed here
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return Ended(signal=os.WTERMSIG(status))
    found: Ended[T] = pickle.loads(data)
    return found


# -- what is there -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """What would outlive the process: folders, files with what tells them apart, a digest of all committed rows."""

    folders: frozenset[str]
    files: frozenset[tuple[str, int, int, int]]
    database: str

    @classmethod
    def now(cls, home: Path, connection: psycopg.Connection[Any]) -> State:
        """What is there now; ``connection`` must be one that commits by itself."""
        folders, found = [], []
        for folder, names, files in os.walk(home):
            place = os.path.relpath(folder, home)
            folders += [os.path.normpath(f"{place}/{name}") for name in names]
            for name in files:
                facts = os.stat(f"{folder}/{name}")
                path = os.path.normpath(f"{place}/{name}")
                found.append((path, facts.st_ino, facts.st_size, facts.st_mtime_ns))
        return cls(frozenset(folders), frozenset(found), _digest(connection))

    def differs_at(self, other: State) -> set[str]:
        """The paths, relative to the home, of which one of the two states knows something else."""
        return {path for path, *_ in self.files ^ other.files} | (self.folders ^ other.folders)


def _digest(connection: psycopg.Connection[Any]) -> str:
    named = connection.execute(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "
        "WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"
    ).fetchall()
    # A row that was written anew with the same values has another xmin.
    rows = " UNION ALL ".join(f"SELECT '{name}' || t.xmin || t::text AS line FROM {name} t" for (name,) in named)
    schemas = "SELECT 'schema ' || nspname AS line FROM pg_namespace"
    query = f"SELECT md5(string_agg(line, ';' ORDER BY line)) FROM ({schemas} UNION ALL {rows or schemas}) AS all_lines"
    found = connection.execute(query).fetchone()
    assert found is not None
    return str(found[0])


# -- steps -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """One place in the course of things: right before a step, in the middle of it, or right after it."""

    name: str
    phase: Phase

    def __str__(self) -> str:
        return f"{self.phase} {self.name}"


@dataclass(frozen=True)
class Recording:
    """The moments of one run in their order, the state at each, and the changes that no step has announced."""

    moments: list[Moment]
    states: list[State]
    uncounted: list[str]

    def kill_points(self, *, halves: bool) -> list[int]:
        """The moments at which a kill can make a difference.

        Of several in a row with the same files and rows one is enough: what a killed process leaves behind is the same,
        but for folders with nothing in them. No recording sees half a file: with ``halves`` those moments all count.
        """
        chosen = []
        last: tuple[object, ...] = ()
        for index, (moment, state) in enumerate(zip(self.moments, self.states, strict=True)):
            if moment.phase == "half":
                chosen += [index] if halves else []
            elif last != (state.files, state.database):
                chosen.append(index)
                last = (state.files, state.database)
        return chosen


def record(home: Path, dsn: str, work: Callable[[], T]) -> tuple[T, Recording]:
    """Run ``work`` and list its moments. Only for a process that ends afterwards."""
    steps = _Recorder(home, dsn)
    steps.install()
    result = work()
    return result, steps.finish()


def kill_at(home: Path, index: int, moment: Moment | None, work: Callable[[], object]) -> str:
    """Run ``work`` and kill this process at the moment of that number, which has to be ``moment`` where that is given.

    Gives what went on instead, where there is no such moment. Only for a process that ends afterwards.
    """
    steps = _Killer(home, index, moment)
    steps.install()
    work()
    return steps.fault or f"there were {steps.count} moments, and none with the number {index}"


@dataclass(eq=False)
class _Step:
    name: str
    paths: tuple[str, ...]
    database: bool = False


class _Steps:
    """Calls ``moment`` around everything that leaves a trace under ``home`` or in a database."""

    def __init__(self, home: Path) -> None:
        self.home = str(home)
        self.under_way: list[_Step] = []
        self.uncounted: list[str] = []
        self.count = 0
        self._inside = threading.local()
        self._lock = threading.RLock()

    def reached(self, moment: Moment, path: str | None) -> None:
        """What is done at a moment; ``path`` is the file that can be cut in half."""

    def moment(self, step: _Step, phase: Phase) -> None:
        with self._lock:
            self.reached(Moment(step.name, phase), step.paths[0] if phase == "half" else None)
            self.count += 1

    def begin(self, step: _Step) -> None:
        self.moment(step, "before")
        self.under_way.append(step)

    def end(self, step: _Step, *, written: bool = False) -> None:
        if written:
            self.moment(step, "half")
        self.moment(step, "after")
        self.under_way.remove(step)

    @contextlib.contextmanager
    def step(self, verb: str, *paths: object, written: bool = False, vague: bool = False) -> Iterator[None]:
        """A step that is done when the block is; what it does on the way there is part of it.

        Its name tells the kind of the file, or no more than the layer where it is ``vague``.
        """
        mine = tuple(self._absolute(path) for path in paths)
        if self._nested or not any(map(self.is_mine, mine)):
            yield
            return
        what = f"the tree{self.layer(mine[-1])}" if vague else self.describe(mine[-1])
        with self._whole(_Step(f"{verb} {what}", mine), written=written):
            yield

    @contextlib.contextmanager
    def transaction(self, name: str) -> Iterator[None]:
        with self._whole(_Step(name, (), database=True)):
            yield

    @contextlib.contextmanager
    def _whole(self, step: _Step, *, written: bool = False) -> Iterator[None]:
        self.begin(step)
        self._inside.depth = 1
        try:
            yield
        except BaseException:
            self.under_way.remove(step)
            raise
        finally:
            self._inside.depth = 0
        self.end(step, written=written)

    @property
    def _nested(self) -> bool:
        return bool(getattr(self._inside, "depth", 0))

    def _absolute(self, path: object) -> str:
        return os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]

    def is_mine(self, path: str) -> bool:
        """Whether a path is under the home."""
        return path.startswith(f"{self.home}/")

    def layer(self, path: str) -> str:
        """`` of <layer>`` for what belongs to a table."""
        parts = Path(os.path.relpath(path, self.home)).parts
        return next((f" of {layer}" for layer in LAYERS for part in parts if part.startswith(layer)), "")

    def describe(self, path: str) -> str:
        """What kind of file or folder a path is, the same in every run."""
        parts = Path(os.path.relpath(path, self.home)).parts
        name = parts[-1]
        where = self.layer(path)
        kinds = {
            ".metadata.json": "table metadata",
            ".parquet": "data file",
            ".avro": "manifest list" if name.startswith("snap-") else "manifest",
        }
        kind = next((kind for suffix, kind in kinds.items() if name.endswith(suffix)), None)
        if kind is not None:
            return f"{kind}{where}"
        if parts[0] == "raw" and len(parts) == 6:
            return "raw part" if name.startswith(".") else "raw file"
        return f"{parts[0]} folder or file, {len(parts)} deep{where}"

    # -- where it hooks in ---------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Change the libraries of this process."""
        self._hook_transactions()
        self._hook_folders_and_names()
        self._hook_plain_writes()
        self._hook_parquet()
        self._hook_iceberg()
        # Last, so that it may find fault with what the others let through.
        sys.addaudithook(self._audit)

    def _hook_transactions(self) -> None:
        commit = psycopg.Connection.commit

        @functools.wraps(commit)
        def counted(connection: psycopg.Connection[Any]) -> None:
            with self.transaction(_name_of_transaction()):
                commit(connection)

        psycopg.Connection.commit = counted  # type: ignore[method-assign]

    def _hook_folders_and_names(self) -> None:
        def hook(name: str, verb: str) -> None:
            call = getattr(os, name)

            @functools.wraps(call)
            def counted(path: Any, *args: Any, dir_fd: int | None = None, **others: Any) -> Any:
                if dir_fd is not None:
                    # A whole tree is removed, whose order is the file system's.
                    with self.step(f"{verb} within", os.path.join(_path_of(dir_fd), path), vague=True):
                        return call(path, *args, dir_fd=dir_fd, **others)
                renamed = args[:1] if name in ("rename", "replace", "link") else ()
                with self.step(verb, path, *renamed):
                    return call(path, *args, **others)

            setattr(os, name, counted)

        for name in ("unlink", "remove", "rmdir"):
            hook(name, "delete")
        for name in ("rename", "replace"):
            hook(name, "rename to")
        hook("link", "link")
        hook("mkdir", "make")

    def _hook_plain_writes(self) -> None:
        """Files that Python writes: begun by the audit hook where they are opened, done where they are synced."""
        import shutil

        fsync, copyfile = os.fsync, shutil.copyfile

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            path = _path_of(descriptor)
            for step in [step for step in self.under_way if step.paths == (path,)]:
                self.end(step, written=True)

        def copied(source: Any, target: Any, **options: Any) -> Any:
            with self.step("copy", target, written=True):
                return copyfile(source, target, **options)

        os.fsync = synced  # type: ignore[assignment]
        shutil.copyfile = copied

    def _hook_parquet(self) -> None:
        begin, close, connect = pq.ParquetWriter.__init__, pq.ParquetWriter.close, duckdb.connect
        writing: dict[int, _Step] = {}

        def begun(writer: Any, where: Any, *args: Any, **options: Any) -> None:
            path = self._absolute(where)
            if self.is_mine(path):
                writing[id(writer)] = step = _Step(f"write {self.describe(path)}", (path,))
                self.begin(step)
            begin(writer, where, *args, **options)

        def closed(writer: Any) -> None:
            close(writer)
            if (step := writing.pop(id(writer), None)) is not None:
                self.end(step, written=True)

        pq.ParquetWriter.__init__ = begun
        pq.ParquetWriter.close = closed
        duckdb.connect = lambda *args, **options: _Copying(connect(*args, **options), self)  # type: ignore[assignment]

    def _hook_iceberg(self) -> None:
        create, delete = PyArrowFile.create, PyArrowFileIO.delete

        def created(file: PyArrowFile, overwrite: bool = False) -> Any:
            path = self._absolute(_local(file.location))
            if not self.is_mine(path):
                return create(file, overwrite)
            step = _Step(f"write {self.describe(path)}", (path,))
            self.begin(step)
            return _Stream(create(file, overwrite), functools.partial(self.end, step, written=True))

        def deleted(io: PyArrowFileIO, location: Any) -> None:
            with self.step("delete", _local(location if isinstance(location, str) else location.location)):
                delete(io, location)

        PyArrowFile.create = created  # type: ignore[method-assign]
        PyArrowFileIO.delete = deleted  # type: ignore[method-assign]

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open" and event not in _CHANGES:
            return
        writes = event != "open" or (isinstance(args[2], int) and args[2] & _WRITING and not _is_unnamed(args[2]))
        if not writes or not isinstance(args[0], str | bytes | os.PathLike) or self._nested:
            return
        path = self._absolute(args[0])
        if not self.is_mine(path) or any(path in step.paths for step in self.under_way):
            return
        if event == "open":
            self.begin(_Step(f"write {self.describe(path)}", (path,)))
        else:
            self.uncounted.append(f"{event} of {self.describe(path)}")


class _Recorder(_Steps):
    def __init__(self, home: Path, dsn: str) -> None:
        super().__init__(home)
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._moments: list[Moment] = []
        self._states: list[State] = []

    def reached(self, moment: Moment, path: str | None) -> None:
        state = State.now(Path(self.home), self._connection)
        if self._states:
            self._look_for_strange_changes(self._states[-1], state, moment)
        self._moments.append(moment)
        self._states.append(state)

    def finish(self) -> Recording:
        """What was recorded, with the state at the end as the last moment."""
        self.moment(_Step("the end", ()), "before")
        self.uncounted += [f"no moment after: {step.name}" for step in self.under_way]
        self._connection.close()
        return Recording(self._moments, self._states, self.uncounted)

    def _look_for_strange_changes(self, before: State, after: State, moment: Moment) -> None:
        announced = {os.path.relpath(path, self.home) for step in self.under_way for path in step.paths}
        for path in before.differs_at(after):
            # A library may make the folders above a file that it writes.
            if not any(known == path or known.startswith(f"{path}/") for known in announced):
                self.uncounted.append(f"a change of {path} {moment}")
        if before.database != after.database and not any(step.database for step in self.under_way):
            self.uncounted.append(f"a change of the database {moment}")


class _Killer(_Steps):
    def __init__(self, home: Path, index: int, moment: Moment | None) -> None:
        super().__init__(home)
        self._index = index
        self._moment = moment
        self.fault: str | None = None

    def reached(self, moment: Moment, path: str | None) -> None:
        if self.count != self._index:
            return
        if self._moment not in (None, moment):
            self.fault = f"moment {self._index} was to be {self._moment!s}, and is {moment!s}"
            return
        if path is not None:
            os.truncate(path, os.stat(path).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)


class _Copying:
    """A DuckDB connection whose COPY is a step."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, steps: _Steps) -> None:
        self._connection = connection
        self._steps = steps

    def execute(self, sql: Any, *args: Any, **options: Any) -> Any:
        target = _COPY_TARGET.match(sql) if isinstance(sql, str) else None
        if target is None:
            return self._connection.execute(sql, *args, **options)
        with self._steps.step("write", target[1].replace("''", "'"), written=True):
            return self._connection.execute(sql, *args, **options)

    def __enter__(self) -> _Copying:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@dataclass
class _Stream:
    """A stream that says when it was closed."""

    stream: Any
    done: Callable[[], None]
    closed: bool = field(default=False)

    def close(self) -> None:
        self.stream.close()
        if not self.closed:
            self.closed = True
            self.done()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _is_unnamed(flags: int) -> bool:
    """Whether a file is opened that has no name, and so is gone with its process."""
    return bool(_UNNAMED) and flags & _UNNAMED == _UNNAMED


def _local(uri: str) -> str:
    return uri.removeprefix("file://").removeprefix("file:")


def _path_of(descriptor: int) -> str:
    """The path of an open file or folder."""
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _name_of_transaction() -> str:
    """Who commits, by the outermost function of the catalog or the ledger that is under way."""
    found = None
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        function = frame.f_code.co_name
        if module.startswith("airflow_lake_provider.catalog.") and function != "repeated":
            found = " ".join(["catalog commit", function, *_layers(frame.f_locals.values())])
        elif module.startswith("airflow_lake_provider.ledger.") and not function.startswith("<"):
            found = f"ledger commit {'release' if function == '__exit__' else function}"
        elif found is not None and not module.startswith("contextlib"):
            # An engine that commits stands between the catalog and the ledger, whose fence it calls.
            break
        frame = frame.f_back  # type: ignore[assignment]
    return found or "commit of somebody else"


def _layers(values: Iterable[object]) -> list[str]:
    """The layers that a function's arguments name, at most one."""
    for value in values:
        name = value.name() if hasattr(value, "name") and callable(value.name) else value
        first = name[0] if isinstance(name, tuple) and name else name
        if first in LAYERS:
            return [str(first)]
    return []
