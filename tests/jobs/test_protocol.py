"""What a job says on its standard output, and how it is read."""

from __future__ import annotations

import inspect
import io
import json
import os
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider import errors
from airflow_lake_provider.errors import JobDied, JobFailed, LakeError, StorageUnavailable, UnclosedQuote
from airflow_lake_provider.jobs.protocol import (
    Failure,
    Reporter,
    Result,
    Stage,
    WorkerGone,
    error_data,
    error_from,
    parse,
)

TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LakeError)]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(
    st.text(st.characters(exclude_categories=())), VALUES | st.text(st.characters(codec="utf-16"))
)


class Writes(io.StringIO):
    """A stream that remembers what each write was, and whether it was flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.flushed = 0

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)

    def flush(self) -> None:
        self.flushed = len(self.writes)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_lines_are_read_with_or_without_their_end(end: str) -> None:
    assert parse('STAGE reading_file {"records": 3}' + end) == Stage("reading_file", {"records": 3})
    assert parse('RESULT {"files": []}' + end) == Result({"files": []})
    assert parse('ERROR {"type": "NotFound"}' + end) == Failure({"type": "NotFound"})


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        "reading",
        "STAGE",
        "STAGE reading",
        "STAGE {}",
        "STAGE Reading {}",
        "STAGE reading-file {}",
        "STAGE  {}",
        "STAGE reading [1]",
        "STAGE reading {",
        "STAGE reading {} {}",
        'STAGE reading {"a": NaN}',
        'RESULT {"a": -Infinity}',
        "RESULT",
        "RESULT ",
        "RESULT null",
        'RESULT "text"',
        "RESULT{}",
        " RESULT {}",
        "result {}",
        "ERROR: it went wrong",
        "ERROR no such file",
        "ERROR root: it went wrong",
        "RESULT " + "[" * 100_000,
        'RESULT {"a":' * 100_000,
        'RESULT {"a": ' + "1" * 10_000 + "}",
        "RESULT {\x00}",
        "RESULT {}\nRESULT {}",
    ],
)
def test_what_only_begins_like_a_line_of_ours_is_log(line: str) -> None:
    assert parse(line) is None


@given(st.text())
def test_no_line_is_an_exception(line: str) -> None:
    parse(line)
    parse(f"STAGE a {line}")
    parse(f"RESULT {line}")


@given(OBJECTS)
def test_what_is_reported_is_one_line_whatever_the_data_hold(data: dict[str, Any]) -> None:
    stream = Writes()
    reporter = Reporter(stream)
    reporter.stage("silver", data)
    reporter.result(data)
    assert len(stream.writes) == stream.flushed == 2
    for line in stream.writes:
        assert line.isascii()
        assert line.endswith("\n")
        assert len(line.splitlines()) == 1
    assert [parse(line) for line in stream.writes] == [Stage("silver", data), Result(data)]


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b\u2029c\x85d\x0be\x0cf", "\ud800", "é€😀", "\x00\x7f"])
def test_ends_of_lines_and_lone_surrogates_are_escaped(text: str) -> None:
    stream = io.TextIOWrapper(raw := io.BytesIO(), encoding="ascii", newline="\n")
    Reporter(stream).stage("silver", {text: text})
    assert raw.getvalue().isascii()
    assert raw.getvalue().count(b"\n") == 1
    assert parse(raw.getvalue().decode()) == Stage("silver", {text: text})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused_and_nothing_is_written(number: float) -> None:
    stream = Writes()
    with pytest.raises(ValueError, match="JSON compliant"):
        Reporter(stream).result({"share": [number]})
    assert stream.writes == []


@pytest.mark.parametrize("name", ["", "Silver", "two words", "a-b", "a\n", "a1", "ä"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    stream = Writes()
    with pytest.raises(ValueError, match="a stage is named"):
        Reporter(stream).stage(name, {})
    assert stream.writes == []


def test_threads_do_not_mix_their_lines() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w", encoding="ascii") as stream, os.fdopen(read, encoding="ascii") as lines:
        reporter = Reporter(stream)
        # Longer than what a pipe takes in one piece.
        threads = [
            threading.Thread(target=reporter.stage, args=("work", {"from": n, "text": f"{n}" * 9000})) for n in range(8)
        ]
        for thread in threads:
            thread.start()
        read_back = [parse(lines.readline()) for _ in threads]
        for thread in threads:
            thread.join()
    assert sorted(stage.data["from"] for stage in read_back if isinstance(stage, Stage)) == list(range(8))


def test_a_line_is_written_and_flushed_before_the_next() -> None:
    class Slow(io.StringIO):
        calls = ""

        def write(self, text: str) -> int:
            self.calls += "w"
            time.sleep(0.002)
            return len(text)

        def flush(self) -> None:
            self.calls += "f"

    stream = Slow()
    reporter = Reporter(stream)
    threads = [threading.Thread(target=reporter.stage, args=("work", {})) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stream.calls == "wf" * 8


def test_a_broken_pipe_means_that_the_worker_is_gone() -> None:
    read, write = os.pipe()
    stream = os.fdopen(write, "w", encoding="ascii")
    os.close(read)
    with pytest.raises(WorkerGone) as gone:
        Reporter(stream).stage("silver", {})
    assert gone.value.code == 143
    assert not isinstance(gone.value, Exception)  # so that no handler of errors goes on with the work
    with pytest.raises(BrokenPipeError):
        stream.close()


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_of_the_tree_comes_back_as_itself(kind: type[LakeError]) -> None:
    error = kind("It was wrong in line 3: do\nsomething “else”.")
    for number, name in enumerate(vars(error), start=7):
        setattr(error, name, number)
    stream = Writes()
    Reporter(stream).error(error)
    failure = parse(stream.writes[0])
    assert isinstance(failure, Failure)
    back = error_from(failure.data)
    assert type(back) is kind
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_the_tree_has_errors_with_attributes() -> None:
    assert vars(error_from(error_data(UnclosedQuote("open", line=12)))) == {"line": 12}
    assert vars(error_from(error_data(UnclosedQuote("open")))) == {"line": None}
    died = error_from(error_data(JobDied("died", signal=9, peak_bytes=3)))
    assert vars(died) == {"exit_code": None, "signal": 9, "peak_bytes": 3}


def test_a_class_of_its_own_comes_back_as_the_nearest_of_the_tree() -> None:
    class BucketAway(StorageUnavailable):
        pass

    back = error_from(error_data(BucketAway("away")))
    assert type(back) is StorageUnavailable
    assert str(back) == "away"


def test_of_a_foreign_error_only_the_type_travels() -> None:
    class NotFound(Exception):  # named like one of ours
        pass

    for error in (KeyError("secret cell"), NotFound("secret cell")):
        data = error_data(error)
        assert "cell" not in json.dumps(data)
        back = error_from(data)
        assert type(back) is JobFailed
        assert type(error).__name__ in str(back)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": None},
        {"type": ["NotFound"], "message": "x"},
        {"type": "NotFound"},
        {"type": "NotFound", "message": 3},
        {"type": "NoSuchError", "message": "secret cell"},
        {"type": "annotations", "message": "secret cell"},
        {"type": "__doc__", "message": "secret cell"},
        {"type": "Exception", "message": "secret cell"},
        {"type": "secret cell", "message": "secret cell"},
    ],
)
def test_whatever_else_an_error_line_holds_is_a_failed_job(data: dict[str, Any]) -> None:
    back = error_from(data)
    assert type(back) is JobFailed
    assert "cell" not in str(back)


@pytest.mark.parametrize("line", ["3", True, 1.5, [3], None])
def test_attributes_of_the_wrong_kind_are_left_out(line: object) -> None:
    back = error_from({"type": "UnclosedQuote", "message": "open", "line": line})
    assert type(back) is UnclosedQuote
    assert back.line is None
