"""The files that are measured: made by DuckDB, the same at every run."""

from __future__ import annotations

from pathlib import Path

import duckdb

_WORDS = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet", "kilo", "lima"]
_CITIES = ["Berlin", "Köln", "München", "Paris", "São Paulo", "Oslo", "Wien", "Zürich"]


def mixed(path: Path, rows: int, *, first: int = 0) -> Path:
    """``rows`` rows of 10 mixed columns, about 110 bytes each, with ids from ``first`` on."""
    words = "[" + ", ".join(f"'{word}'" for word in _WORDS) + "]"
    cities = "[" + ", ".join(f"'{city}'" for city in _CITIES) + "]"

    def pick(choices: str, size: int, salt: int) -> str:
        return f"{choices}[1 + CAST(hash(i + {salt}) % {size} AS INT)]"

    def word(salt: int) -> str:
        return pick(words, len(_WORDS), salt)

    # One note in ten holds a comma, so that it is quoted.
    between = "CASE WHEN hash(i + 12) % 10 = 0 THEN ', ' ELSE ' ' END"
    note = f"{word(11)} || {between} || {word(13)} || ' ' || {word(14)} || ' ' || {word(15)}"
    duckdb.sql(f"""
        COPY (
            SELECT i AS id,
                   {word(1)} || ' ' || {word(2)} AS customer,
                   {pick(cities, len(_CITIES), 3)} AS city,
                   printf('%.2f', (hash(i + 4) % 10000000) / 100.0) AS amount,
                   hash(i + 5) % 100 AS qty,
                   hash(i + 6) % 2 = 0 AS active,
                   DATE '1950-01-01' + CAST(hash(i + 7) % 22000 AS INT) AS born,
                   TIMESTAMP '2026-01-01' + to_seconds(CAST(hash(i + 8) % 31000000 AS BIGINT)) AS seen,
                   {note} AS note,
                   chr(65 + CAST(hash(i + 9) % 26 AS INT)) || printf('%05d', hash(i + 10) % 100000) AS code
            FROM range({first}, {first + rows}) AS t(i) ORDER BY i
        ) TO '{path}' (FORMAT csv, HEADER)
    """)
    return path


def wide(path: Path, columns: int, rows: int) -> Path:
    """``rows`` rows of ``columns`` columns: numbers, texts and dates in turn."""
    cells = ("{}", "w{}", "2026-01-{:02d}", "{}.5")
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join(f"c{n}" for n in range(columns)) + "\n")
        for row in range(rows):
            file.write(
                ",".join(
                    cells[n % 4].format((row * 7 + n) % 28 + 1 if n % 4 == 2 else row * 31 + n) for n in range(columns)
                )
                + "\n"
            )
    return path
