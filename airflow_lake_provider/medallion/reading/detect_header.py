"""Which record holds the column names, and what stands before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from airflow_lake_provider.medallion.reading.detect_values import is_blank, is_value, kind_of

MOST_PREAMBLE_RECORDS: Final = 10
_NARROWEST_PADDED: Final = 3

Fields = Sequence[str]


def is_header_like(fields: Fields) -> bool:
    """Whether no field is blank and none is a value."""
    return not any(is_blank(text) or is_value(text) for text in fields)


def holds_value(fields: Fields) -> bool:
    """Whether a field is a value, so that the record cannot hold column names."""
    return any(is_value(text) for text in fields)


def preamble_length(records: Sequence[Fields], first: int = 0) -> int:
    """How many records stand before the header, ``first`` of which are known to.

    They are at most ten, fewer than the records after the header, and narrower than a header-like record that every
    record after it matches in width. A title that was padded to the width of the table, such as ``Report,,,,``, is
    narrow too; in a table of two columns it would look just like data.
    """
    widths = [len(fields) for fields in records]
    count = len(records)
    # From which record on all have the width of the last one.
    uniform = count
    while uniform > 0 and widths[uniform - 1] == widths[-1]:
        uniform -= 1
    for place in range(first, min(first + MOST_PREAMBLE_RECORDS + 1, count)):
        fields = records[place]
        if place == first and place >= uniform and is_header_like(fields):
            return first
        if place > first and place >= uniform and place - first < count - place - 1 and is_header_like(fields):
            width = len(fields)
            narrow = all(_width_before(before, width) < width for before in records[first:place])
            return place if narrow and _is_preamble(records, first, place) else first
    return first


def filled_width(fields: Fields) -> int:
    """The number of fields up to the last one that is not blank."""
    width = len(fields)
    while width and is_blank(fields[width - 1]):
        width -= 1
    return width


def _width_before(fields: Fields, width: int) -> int:
    """How wide a record counts that stands before one of ``width`` fields."""
    filled = filled_width(fields)
    return filled if filled <= 1 and width >= _NARROWEST_PADDED else len(fields)


def _is_preamble(records: Sequence[Fields], first: int, place: int) -> bool:
    """Whether the records before ``place`` are no header themselves.

    A first record that is wide enough to hold names gives way only to a header that differs from the data under it.
    """
    before = records[first]
    filled = filled_width(before)
    if filled < 2 or any(is_value(text) for text in before):
        return True
    if 2 * filled <= len(records[place]):
        return True
    below = records[place + 1 : place + 21]
    return any(
        sum(kind_of(fields[column]) in ("number", "date", "boolean", "time") for fields in below) * 2 > len(below)
        for column in range(len(records[place]))
    )


def table_width(records: Sequence[Fields]) -> int:
    """The width of a table without a header: that of its first record, unless most records agree on another."""
    if not records:
        return 0
    [(width, count)] = Counter(len(fields) for fields in records).most_common(1)
    return width if 2 * count > len(records) else len(records[0])
