"""Tables whose records are all well formed and of one width: a look at the bytes between the fields proves it.

The leading records of such a table tell as much about how it is written as all of them do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, repeat
from typing import Final

from airflow_lake_provider.medallion.dialect import Dialect
from airflow_lake_provider.medallion.reading.records import Record, read_records

_NOT_A_DELIMITER: Final = " \r\n"


@dataclass(frozen=True, slots=True)
class Uniform:
    """``count`` records of ``width`` fields.

    ``end`` is an offset that the last record ends at or behind, but for its line end. ``spans_lines`` says that a
    field holds a line end.
    """

    text: str
    dialect: Dialect
    final: bool
    count: int
    width: int
    end: int
    spans_lines: bool
    _leading: list[Record] = field(default_factory=list, init=False, compare=False)

    def leading(self, most: int) -> list[Record]:
        """The first ``most`` records, or all if there are fewer."""
        known = self._leading
        if len(known) < min(most, self.count):
            known[:] = islice(read_records(self.text, self.dialect, final=self.final), most)
        return known[:most]


def find_uniform(text: str, dialect: Dialect, *, final: bool) -> Uniform | None:
    """The records of ``text``, or None where they are not proven to be uniform.

    They are those that ``read_records`` gives (``final`` as there). None also where a record has one field only, where
    records end in different ways, and for dialects in which that is not plain to see: longer delimiters, escape
    characters, and spaces after delimiters that belong to them.
    """
    delimiter, quote = dialect.delimiter, dialect.quote or None
    if delimiter is None or len(delimiter) != 1 or delimiter in _NOT_A_DELIMITER or delimiter == quote:
        return None
    if dialect.skip_initial_space or (dialect.escape and dialect.escape != quote):
        return None
    if quote is not None and (len(quote) != 1 or quote in _NOT_A_DELIMITER):
        return None
    whole = text
    if not final:
        # The record behind the last line end is not whole. Were that line end inside quotes, they would stay open.
        text = whole[: whole.rfind("\n") + 1]
        if whole.find("\r", len(text), len(whole) - 1) >= 0:
            return None
    bare = text
    if quote is not None and quote in text:
        bare = _quoted_fields(delimiter, quote).sub("x" if delimiter != "x" else "y", text)
        if quote in bare:
            return None
    if "\r" in bare:
        if not bare.count("\r\n") == bare.count("\r") == bare.count("\n"):
            return None
        lines = bare.split("\r\n")
    else:
        lines = bare.split("\n")
    lines = list(filter(None, lines))
    separators = set(map(str.count, lines, repeat(delimiter)))
    if len(separators) != 1 or 0 in separators:
        return None
    return Uniform(
        whole,
        dialect,
        final,
        count=len(lines),
        width=separators.pop() + 1,
        end=len(text.rstrip("\r\n")),
        spans_lines=bare is not text and text.count("\n") + text.count("\r") != bare.count("\n") + bare.count("\r"),
    )


@lru_cache(maxsize=64)
def _quoted_fields(delimiter: str, quote: str) -> re.Pattern[str]:
    """A pattern for whole quoted fields. It begins with the quote itself, which is found fast."""
    d, q = re.escape(delimiter), re.escape(quote)
    begins = rf"{q}(?:(?<=[{d}\r\n]{q})|(?<=\A{q}))"
    return re.compile(rf"{begins}[^{q}]*+(?:{q}{q}[^{q}]*+)*+{q}(?=[{d}\r\n]|\Z)")
