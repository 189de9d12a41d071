"""How a stream is cut into lines."""

from __future__ import annotations

import os
import time
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.jobs import process_output
from airflow_lake_provider.jobs.process_output import LONGEST_LOG_LINE, Line, Lines, Output

CHUNKS = st.lists(
    st.sampled_from([b"", b"\n", b"\r\n", b"STAGE ", b"RESULT ", b"ERR", b"OR ", b"x", b"\xff", b"yy" * 9])
)


def lines_of(chunks: list[bytes], *, protocol: bool = True) -> list[Line]:
    lines = Lines(protocol=protocol)
    return [*(line for chunk in chunks for line in lines.feed(chunk)), *lines.end()]


@given(CHUNKS)
def test_lines_do_not_depend_on_where_the_reads_ended(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    expected = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    if not data or data.endswith(b"\n"):
        expected.pop()
    assert [line.text for line in lines_of(chunks)] == expected
    assert lines_of(chunks) == lines_of([data]) == lines_of([bytes([byte]) for byte in data])
    for line in lines_of(chunks):
        assert line.ours == line.text.startswith((b"STAGE ", b"RESULT ", b"ERROR "))
    assert not any(line.ours for line in lines_of(chunks, protocol=False))


@given(CHUNKS)
def test_nothing_is_lost_where_lines_are_cut(chunks: list[bytes]) -> None:
    with patch.object(process_output, "LONGEST_LOG_LINE", 4), patch.object(process_output, "_LONGEST_LINE", 20):
        cut = lines_of(chunks)
        assert cut == lines_of([b"".join(chunks)])
        assert b"".join(line.text for line in cut) == b"".join(chunks).replace(b"\r\n", b"").replace(b"\n", b"")
        assert all(len(line.text) <= 20 if line.ours else len(line.text) <= 6 for line in cut)


def test_what_follows_a_cut_is_none_of_ours() -> None:
    data = b"x" * LONGEST_LOG_LINE + b"RESULT {}\nRESULT {}\n"
    assert [line.ours for line in lines_of([data])] == [False, False, True]


def test_output_ends_although_somebody_holds_the_pipes_open() -> None:
    out, to_out = os.pipe()
    err, to_err = os.pipe()
    output = Output(out, err)
    os.write(to_out, b"STAGE a {}\nno end")
    os.write(to_err, b"STAGE a {}\n")
    taken: list[Line] = []
    while len(taken) < 2:
        taken += output.take(0.05)
    output.finish()
    while not output.ended:
        taken += output.take(0.05)
    output.close()
    for descriptor in (out, to_out, err, to_err):
        os.close(descriptor)
    assert sorted(taken) == [Line(False, b"STAGE a {}"), Line(False, b"no end"), Line(True, b"STAGE a {}")]


def test_what_is_still_in_the_pipe_at_the_end_is_read() -> None:
    out, to_out = os.pipe()
    err, to_err = os.pipe()
    with patch.object(process_output, "_WAITING_CHUNKS", 1):
        output = Output(out, err)
    for number in range(10):
        os.write(to_out, b"%d\n" % number)
        time.sleep(0.002)  # so that several reads are needed, and one of them waits for the first lines to be taken
    os.write(to_err, b"last words\n")
    output.finish()
    taken: list[Line] = []
    while not output.ended:
        taken += output.take(0.05)
    output.close()
    for descriptor in (out, to_out, err, to_err):
        os.close(descriptor)
    assert [line.text for line in taken] == [*(b"%d" % number for number in range(10)), b"last words"]


def test_output_that_nobody_takes_can_be_given_up() -> None:
    out, to_out = os.pipe()
    output = Output(out, err := os.open(os.devnull, os.O_RDONLY))
    os.set_blocking(to_out, False)
    for _ in range(1000):
        try:
            os.write(to_out, b"\n" * 4096)
        except BlockingIOError:
            break
    output.close()
    for descriptor in (out, to_out, err):
        os.close(descriptor)
