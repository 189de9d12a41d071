"""The few places in which SQL differs between the engines; everything else is written once, in ``sql``."""

from __future__ import annotations

from typing import Protocol

from airflow_lake_provider.medallion.types.model import ColumnType
from airflow_lake_provider.medallion.types.patterns import TRIMMED


class SqlDialect(Protocol):
    """How one engine spells what the generator needs.

    Arguments and results are SQL expressions unless said otherwise. Texts compare by their bytes in every dialect.
    """

    def identifier(self, name: str) -> str:
        """A quoted identifier for a name."""

    def literal(self, text: str) -> str:
        """A string literal for a Python text."""

    def matches(self, expr: str, pattern: str) -> str:
        """Whether the whole text matches the Python text ``pattern``."""

    def trim(self, expr: str, *, guarded: bool = True) -> str:
        """The text without the trimmed characters at either end.

        ``guarded`` makes it quick where there are none, at the price of a longer expression.
        """

    def byte_length(self, expr: str) -> str:
        """The number of bytes."""

    def position(self, expr: str, character: str) -> str:
        """The 1-based position of a character (a Python text), 0 where it is absent."""

    def trim_end(self, expr: str, characters: str) -> str:
        """The text without these characters (a Python text) at its end."""

    def trim_start(self, expr: str, characters: str) -> str:
        """The text without these characters (a Python text) at its start."""

    def cast(self, expr: str, column_type: ColumnType) -> str:
        """A plain cast of canonical text, ``timestamptz`` with its ``+00:00`` included."""

    def utc(self, zoned: str) -> str:
        """The text ``YYYY-MM-DD HH:MM:SS[.f]`` in UTC of a zoned timestamp with seconds, zeros of ``f`` dropped."""

    def hash64(self, expr: str) -> str:
        """The first 8 bytes of the MD5 of the text's UTF-8, as a big-endian two's complement integer."""


class DuckDB:
    """DuckDB 1.5."""

    def identifier(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def literal(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def matches(self, expr: str, pattern: str) -> str:
        return f"regexp_full_match({expr}, {self.literal(pattern)})"

    def trim(self, expr: str, *, guarded: bool = True) -> str:
        trimmed = f"trim({expr}, {self.literal(TRIMMED)})"
        if not guarded:
            return trimmed
        # Texts compare by their bytes, so these ranges are "begins with no control character and no space" (and is
        # not empty), "does not begin with the no-break space" and "does not begin with the byte order mark".
        ranges = (("\u00a0", "\u00a1"), ("\ufeff", "\uff00"))
        beyond_ascii = " AND ".join(f"({expr} < '{low}' OR {expr} >= '{high}')" for low, high in ranges)
        begins_well = f"{expr} >= '!' AND {beyond_ascii}"
        # `trim` with a set of characters costs several times what looking at the two ends does.
        ends_well = f"substr({expr}, -1) > ' ' AND NOT (suffix({expr}, '\u00a0') OR suffix({expr}, '\ufeff'))"
        return f"CASE WHEN {begins_well} AND {ends_well} THEN {expr} ELSE {trimmed} END"

    def byte_length(self, expr: str) -> str:
        return f"strlen({expr})"

    def position(self, expr: str, character: str) -> str:
        return f"strpos({expr}, {self.literal(character)})"

    def trim_end(self, expr: str, characters: str) -> str:
        return f"rtrim({expr}, {self.literal(characters)})"

    def trim_start(self, expr: str, characters: str) -> str:
        return f"ltrim({expr}, {self.literal(characters)})"

    def cast(self, expr: str, column_type: ColumnType) -> str:
        return f"CAST({expr} AS {column_type.duckdb})"

    def utc(self, zoned: str) -> str:
        # By way of microseconds, since the text of a zoned timestamp is in the session's zone.
        return f"CAST(make_timestamp(epoch_us(CAST({zoned} AS TIMESTAMPTZ))) AS VARCHAR)"

    def hash64(self, expr: str) -> str:
        return f"CAST(CAST(unhex(substr(md5({expr}), 1, 16)) AS BIT) AS BIGINT)"


DUCKDB = DuckDB()
