"""The two streams of a child process, read by a thread as they come and handed over in lines."""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from typing import Final, NamedTuple

LONGEST_LOG_LINE: Final = 64 * 1024
"""Bytes after which a line of log is cut; the rest of it follows as further lines."""

_LONGEST_LINE: Final = 1024**3
_CHUNK: Final = 64 * 1024
# Read at the end from a pipe that somebody out of reach still holds open: more than fits into any pipe.
_REST: Final = 16 * 1024**2
_POLL_SECONDS: Final = 0.05
# What may wait to be taken; beyond it the child waits, and neither it nor we run out of memory.
_WAITING_CHUNKS: Final = 64
_KEYWORDS: Final = (b"STAGE ", b"RESULT ", b"ERROR ")


class Line(NamedTuple):
    """A line without its end; ``ours`` says that it begins like one of the protocol and is whole."""

    ours: bool
    text: bytes


class Lines:
    """Cuts a stream into lines. ``protocol`` says whether lines of the protocol may be among them.

    Those are kept whole whatever their length; others are cut.
    """

    def __init__(self, *, protocol: bool) -> None:
        self._protocol = protocol
        self._begun = bytearray()
        self._continued = False

    def feed(self, data: bytes) -> list[Line]:
        """The lines that end, or reach the greatest length, in ``data``."""
        lines: list[Line] = []
        *ended, begun = data.split(b"\n")
        for piece in ended:
            self._begun += piece
            self._cut(lines)
            lines.append(self._last())
        self._begun += begun
        self._cut(lines)
        return lines

    def end(self) -> list[Line]:
        """The last line, where it has no end."""
        return [self._last()] if self._begun else []

    def _ours(self) -> bool:
        # What follows a cut only looks like the beginning of a line.
        return self._protocol and not self._continued and self._begun.startswith(_KEYWORDS)

    def _cut(self, lines: list[Line]) -> None:
        longest = _LONGEST_LINE if self._ours() else LONGEST_LOG_LINE
        while len(self._begun) > longest:
            longest = LONGEST_LOG_LINE
            self._continued = True
            lines.append(Line(False, bytes(self._begun[:longest])))
            del self._begun[:longest]

    def _last(self) -> Line:
        line = Line(self._ours(), bytes(self._begun).removesuffix(b"\r"))
        self._begun.clear()
        self._continued = False
        return line


class Output:
    """Reads the standard output and error of a child until both end, or until ``finish``.

    Nobody else may read the two descriptors; after ``close`` they are their owner's again.
    """

    def __init__(self, stdout: int, stderr: int) -> None:
        self._lines = {stdout: Lines(protocol=True), stderr: Lines(protocol=False)}
        self._ended = False
        self._queue: queue.Queue[list[Line] | None] = queue.Queue(_WAITING_CHUNKS)
        self._finish = threading.Event()
        self._abandoned = threading.Event()
        for descriptor in self._lines:
            os.set_blocking(descriptor, False)
        self._thread = threading.Thread(target=self._read, name="output of a job", daemon=True)
        self._thread.start()

    def take(self, seconds: float) -> list[Line]:
        """The next lines that there are within ``seconds``, none where there are none."""
        if self._ended:
            time.sleep(seconds)
            return []
        try:
            lines = self._queue.get(timeout=seconds)
        except queue.Empty:
            return []
        self._ended = lines is None
        return lines or []

    def finish(self) -> None:
        """Read what is there and no more, since nobody is left to write; ``ended`` is true once that is taken."""
        self._finish.set()

    @property
    def ended(self) -> bool:
        """Whether all there is was taken."""
        return self._ended

    def close(self) -> None:
        """Read no more."""
        self._abandoned.set()
        self._finish.set()
        self._thread.join()

    def _read(self) -> None:
        poll = select.poll()
        for descriptor in self._lines:
            poll.register(descriptor, select.POLLIN)
        opened = set(self._lines)
        while opened and not self._finish.is_set():
            for descriptor, _ in poll.poll(_POLL_SECONDS * 1000):
                if not self._read_some(descriptor, _CHUNK):
                    poll.unregister(descriptor)
                    opened.discard(descriptor)
        for descriptor in opened:
            self._read_some(descriptor, _REST)
        for lines in self._lines.values():
            self._put(lines.end())
        self._put(None)

    def _read_some(self, descriptor: int, most: int) -> bool:
        """Read what is there, up to ``most`` bytes; False at the end of the stream."""
        while most > 0:
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            most -= len(data)
            if lines := self._lines[descriptor].feed(data):
                self._put(lines)
        return True

    def _put(self, item: list[Line] | None) -> None:
        while not self._abandoned.is_set():
            try:
                return self._queue.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
