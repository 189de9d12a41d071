"""Which quotes of a block open and close fields, where not all of its quoting is plain.

Plain quoting is proven by bitmaps alone (see ``structure``). What is left for here: a quote as an ordinary character
(``5" disk``), spaces around quotes, escape characters and malformed records. Only the quotes are looked at, and only
records that hold an escape character or malformed quoting are read one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_lake_provider.medallion.reading.bits import Bytes, Mask, Positions
from airflow_lake_provider.medallion.reading.exact import ExactRecord
from airflow_lake_provider.medallion.reading.syntax import ByteSyntax

ReadSome = Callable[[int, int], list[ExactRecord]]
"""Takes the place where a record begins and how many records to read at most; none means that text is missing."""

WINDOW: Final = 256 << 10
"""How many bytes are looked at together: what must be done anew after a malformed record."""

_SPACE: Final = 32
# How often lines that begin inside quotes after all are looked at once more; the rest is read record by record.
_ROUNDS: Final = 8
_NONE: Final = np.zeros(0, np.int64)


@dataclass(slots=True)
class Quoting:
    """Up to ``end``, where a record begins: the ``quotes`` that open and close fields or are doubled (in turn opening
    and closing), the ``spaces`` around them that belong to the dialect, and the ``exact`` records, which were read one
    by one and whose bytes hold none of those."""

    quotes: Positions
    spaces: Positions
    exact: list[ExactRecord]
    end: int


def resolve_quoting(
    data: Bytes, syntax: ByteSyntax, read_some: ReadSome, *, final: bool, window: int = WINDOW
) -> Quoting:
    """Resolve the quoting of a block that begins with a record; ``final`` says that the file ends with it."""
    return _Resolver(data, syntax, read_some).resolve(final, window)


class _Resolver:
    def __init__(self, data: Bytes, syntax: ByteSyntax, read_some: ReadSome) -> None:
        self.data = data
        self.size = len(data)
        self.syntax = syntax
        self.read_some = read_some
        self.quotes: list[Positions] = []
        self.exact: list[ExactRecord] = []
        self.limit = 1
        ends = np.zeros(256, np.bool_)
        ends[[10, 13]] = True
        if syntax.delimiter is not None:
            ends[syntax.delimiter] = True
        self.ends_field = ends

    def resolve(self, final: bool, window: int) -> Quoting:
        start, size = 0, window
        while start < self.size:
            stop = min(start + size, self.size)
            reached, more = self._window(start, stop)
            stuck = reached == start
            start = reached
            if more or (stuck and stop == self.size):
                break
            # A record that is longer than the window needs a larger one.
            size = size * 2 if stuck else window
        while final and start < self.size:
            # What is left at the end of the file has no end by itself.
            records = self.read_some(start, WINDOW)
            self.exact.extend(records)
            start = records[-1].end if records else self.size
        quotes = np.concatenate(self.quotes) if self.quotes else _NONE
        return Quoting(quotes, self._spaces(quotes), self.exact, start)

    def _window(self, start: int, stop: int) -> tuple[int, bool]:
        """Resolve the records that begin at ``start`` and end by ``stop``.

        Gives where the next one begins, and whether it needs more text than the block has.
        """
        data, syntax = self.data, self.syntax
        piece = data[start:stop]
        quotes = np.flatnonzero(piece == syntax.quote) + start if syntax.quote is not None else _NONE
        escapes = np.flatnonzero(piece == syntax.escape) + start if syntax.escape is not None else _NONE
        line_ends = np.flatnonzero((piece == 10) | (piece == 13)) + start
        opens, _ = self._may_open(quotes)
        closes, after = self._may_close(quotes)
        cut = after >= self.size
        lines = np.searchsorted(line_ends, quotes)
        position = start
        while True:
            first = int(np.searchsorted(quotes, position))
            kept_index = first + _kept(quotes[first:], lines[first:], opens[first:], closes[first:])
            kept = quotes[kept_index]
            odd = _wrong(kept, opens[kept_index], closes[kept_index])
            wrong = np.union1d(kept[odd], escapes[np.searchsorted(escapes, position) :])
            unknown = int(quotes[cut][0]) if cut.any() else self.size
            again = False
            for place in map(int, wrong):
                if place < position:
                    continue
                begin = self._record_start(line_ends, kept, place, position)
                if place == unknown:
                    self._keep(kept, position, begin)
                    return begin, True
                self._keep(kept, position, begin)
                if not (self.exact and begin - self.exact[-1].end < 4096):
                    self.limit = 1
                records = self.read_some(begin, self.limit)
                if not records:
                    return begin, True
                # Malformed records come in crowds: the more of them, the less is won by looking for the end of each.
                self.limit = min(self.limit * 2, 4096)
                self.exact.extend(records)
                position = records[-1].end
                if position >= stop:
                    return position, False
                if int(np.searchsorted(kept, position)) % 2:
                    again = True
                    break
            if again:
                continue
            begin = self._record_start(line_ends, kept, stop, position)
            self._keep(kept, position, begin)
            return begin, False

    def _keep(self, kept: Positions, start: int, stop: int) -> None:
        low, high = np.searchsorted(kept, (start, stop))
        if high > low:
            self.quotes.append(kept[low:high])

    def _record_start(self, line_ends: Positions, kept: Positions, place: int, start: int) -> int:
        """Where the record begins that holds ``place``: behind the last line end outside quotes, from ``start`` on."""
        high = int(np.searchsorted(line_ends, place))
        low_bound = int(np.searchsorted(line_ends, start))
        step = 16
        while high > low_bound:
            low = max(low_bound, high - step)
            outside = np.flatnonzero(np.searchsorted(kept, line_ends[low:high]) % 2 == 0)
            if len(outside):
                return int(line_ends[low + int(outside[-1])]) + 1
            high, step = low, step * 8
        return start

    def _may_open(self, quotes: Positions) -> tuple[Mask, Positions]:
        """Whether a field begins at each quote, and the place in front of it and its spaces."""
        before = quotes - 1
        if self.syntax.pad:
            self._skip_spaces(before, -1)
        found = self.ends_field[self.data[np.maximum(before, 0)]] | (before < 0)
        return found, before

    def _may_close(self, quotes: Positions) -> tuple[Mask, Positions]:
        """Whether a field ends behind each quote, and the place behind it and its spaces."""
        after = quotes + 1
        if self.syntax.pad:
            self._skip_spaces(after, 1)
        found = self.ends_field[self.data[np.minimum(after, self.size - 1)]] & (after < self.size)
        return found, after

    def _skip_spaces(self, places: Positions, step: int) -> None:
        data, size = self.data, self.size
        index = np.arange(len(places))
        for _ in range(64):
            at = places[index]
            index = index[(at >= 0) & (at < size) & (data[np.clip(at, 0, size - 1)] == _SPACE)]
            if not len(index):
                return
            places[index] += step
        # Very long runs of spaces: look them up among everything that is not one.
        solid = np.concatenate(([-1], np.flatnonzero(data != _SPACE), [size]))
        at = places[index]
        if step > 0:
            places[index] = solid[np.searchsorted(solid, at)]
        else:
            places[index] = solid[np.searchsorted(solid, at, side="right") - 1]

    def _spaces(self, quotes: Positions) -> Positions:
        """The spaces between the quotes of each quoted field and the delimiters or line ends around it."""
        if not self.syntax.pad or not len(quotes):
            return _NONE
        opening, closing = quotes[0::2], quotes[1::2]
        _, before = self._may_open(opening)
        _, after = self._may_close(closing)
        starts = np.concatenate((before + 1, closing + 1))
        lengths = np.concatenate((opening - before - 1, after - closing - 1))
        some = lengths > 0
        starts, lengths = starts[some], lengths[some]
        if not len(starts):
            return _NONE
        first = np.repeat(starts - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
        return np.sort(first + np.arange(int(lengths.sum())))


def _kept(quotes: Positions, lines: Positions, opens: Mask, closes: Mask) -> Positions:
    """Which of the quotes are not ordinary characters, if the first line begins outside quotes.

    What a line leaves behind depends on whether it begins outside or inside quotes, so each line is one of four
    functions of that state: it keeps it, turns it over, or sets it to either. Outside, a quote where no field begins is
    an ordinary one. Where quoting is malformed the answer is wrong, which shows later.
    """
    if not len(quotes):
        return _NONE
    starts = np.concatenate(([0], np.flatnonzero(lines[1:] != lines[:-1]) + 1))
    numbers = np.diff(np.concatenate((starts, [len(lines)])))
    odd = (numbers & 1).astype(np.uint8)
    opening = np.logical_or.reduceat(opens, starts)
    # From outside: none of the quotes of a line without an opening one is syntax, all of them if they alternate.
    kept_outside = np.repeat(opening, numbers)
    from_outside = np.where(opening, odd, 0).astype(np.uint8)
    mixed = np.flatnonzero(opening & ~_alternates(quotes, lines, starts, numbers, opens, closes))
    if len(mixed):
        from_outside[mixed] = _walk(quotes, starts[mixed], numbers[mixed], opens, kept_outside, inside=False)
    # From inside: all of them if they alternate, which is looked at only in lines that do begin inside.
    kept_inside = np.ones(len(quotes), np.bool_)
    from_inside = 1 - odd
    inside = _begin_inside(from_outside, from_inside)
    if inside.any():
        unsure = ~_alternates(quotes, lines, starts, numbers, closes, opens, opening_first=False)
        for _ in range(_ROUNDS):
            mixed = np.flatnonzero(unsure & inside)
            if not len(mixed):
                break
            from_inside[mixed] = _walk(quotes, starts[mixed], numbers[mixed], opens, kept_inside, inside=True)
            unsure[mixed] = False
            inside = _begin_inside(from_outside, from_inside)
    return np.flatnonzero(np.where(np.repeat(inside, numbers), kept_inside, kept_outside))


def _begin_inside(from_outside: npt.NDArray[np.uint8], from_inside: npt.NDArray[np.uint8]) -> Mask:
    """Which lines begin inside quotes, if the first does not, and how each ends (1: inside) from either state."""
    places = np.arange(len(from_outside))
    sets = from_outside == from_inside
    turned = np.bitwise_xor.accumulate(np.where(sets, 0, from_outside).astype(np.uint8))
    last_set = np.maximum.accumulate(np.where(sets, places, -1))
    at_set = np.maximum(last_set, 0)
    state = turned ^ np.where(last_set >= 0, turned[at_set] ^ from_outside[at_set], 0)
    return np.concatenate(([False], state[:-1] == 1))


def _alternates(
    quotes: Positions,
    lines: Positions,
    starts: Positions,
    numbers: Positions,
    first_may: Mask,
    second_may: Mask,
    *,
    opening_first: bool = True,
) -> Mask:
    """For each line whether its quotes, from the first on, stand where opening and closing ones must in turn (the
    other way round where ``opening_first`` is not set), or are doubled."""
    first = (np.arange(len(quotes)) - np.repeat(starts, numbers)) % 2 == 0
    beside = np.zeros(len(quotes) + 1, np.bool_)
    beside[1:-1] = (quotes[1:] == quotes[:-1] + 1) & (lines[1:] == lines[:-1])
    # A closing quote may be followed by one, an opening one may follow one.
    opening, closing = beside[:-1], beside[1:]
    right = np.where(
        first,
        first_may | (opening if opening_first else closing),
        second_may | (closing if opening_first else opening),
    )
    return np.logical_and.reduceat(right, starts)


def _walk(
    quotes: Positions, starts: Positions, numbers: Positions, opens: Mask, kept: Mask, *, inside: bool
) -> npt.NDArray[np.uint8]:
    """Go through the quotes of some lines that begin ``inside`` quotes or outside, all lines at once.

    Sets which of them are ``kept``, and gives for each line whether it ends inside quotes.
    """
    within = np.full(len(starts), inside)
    closed_at = np.full(len(starts), -2, np.int64)
    active = np.argsort(-numbers, kind="stable")
    for step in range(int(numbers.max())):
        active = active[: int(np.count_nonzero(numbers[active] > step))]
        index = starts[active] + step
        place = quotes[index]
        before = within[active]
        syntax = before | opens[index] | (closed_at[active] == place - 1)
        kept[index] = syntax
        closed_at[active] = np.where(before, place, closed_at[active])
        within[active] = before ^ syntax
    return within.astype(np.uint8)


def _wrong(kept: Positions, opens: Mask, closes: Mask) -> Mask:
    """The quotes that do not stand where an opening, closing or doubled quote must, if all before them do."""
    doubled = np.zeros(len(kept) + 1, np.bool_)
    # A closing quote and an opening one side by side are a doubled quote.
    doubled[2 : len(kept) : 2] = kept[2::2] == kept[1:-1:2] + 1
    wrong = np.empty(len(kept), np.bool_)
    wrong[0::2] = ~(opens[0::2] | doubled[0:-1:2])
    wrong[1::2] = ~(closes[1::2] | doubled[2::2])
    return wrong
