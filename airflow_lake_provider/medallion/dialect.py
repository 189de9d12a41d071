"""How a delimited text file is written, and what a user may decide about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LineEnd = Literal["\n", "\r\n", "\r", "mixed"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the bytes of one file become records and fields.

    ``encoding`` is a Python codec name. ``delimiter`` None means one column; it may have more than one
    character. ``quote`` None means that quotes are ordinary characters. ``escape`` None means that a quote inside
    a quoted field is doubled. ``skip_initial_space`` means that one space after each delimiter belongs to the
    dialect. ``header`` says whether the first record after ``preamble`` records holds the column names.
    """

    encoding: str = "utf-8"
    delimiter: str | None = ","
    quote: str | None = '"'
    escape: str | None = None
    line_end: LineEnd = "\n"
    skip_initial_space: bool = False
    header: bool = True
    preamble: int = 0


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a user has decided about a file; None leaves the decision to the reader.

    ``quote`` and ``escape`` take the empty string for "none"; ``delimiter`` takes it for "one column".
    ``preamble`` is the number of records before the header.
    """

    encoding: str | None = None
    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    header: bool | None = None
    preamble: int | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """A decision that could have gone another way.

    ``code`` is stable (``snake_case``), ``message`` one sentence without the text of any cell, ``setting`` the name
    of the setting that decides it (or None), ``line`` the 1-based physical line it is about (or None), ``count`` how
    many records or values it is about.
    """

    code: str
    message: str
    setting: str | None = None
    line: int | None = None
    count: int | None = None
