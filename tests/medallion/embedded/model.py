"""What silver and gold must be, in plain Python: no SQL, no Arrow, nothing shared with the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.medallion.types import reference
from tests.medallion.types.reference import Rules

Row = tuple[str | None, ...]


@dataclass(frozen=True)
class ModelFile:
    """A file: its column names and its rows of texts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def csv(self) -> str:
        """The file as a user would write it; every field quoted, so that no text is taken for something else."""
        lines = [self.columns, *self.rows]
        return "".join(",".join('"' + text.replace('"', '""') + '"' for text in line) + "\n" for line in lines)


@dataclass(frozen=True)
class Tables:
    """The typed tables of a dataset: column → type, silver rows file by file, gold rows sorted."""

    types: dict[str, str]
    silver: list[list[Row]]
    gold: list[Row]


def tables(files: Sequence[ModelFile], rules: Rules) -> Tables:
    """The tables that these present files make."""
    names = list(dict.fromkeys(name for file in files for name in file.columns))
    types: dict[str, tuple[str, str | None]] = {}
    for name in names:
        texts = [
            text
            for file in files
            if name in file.columns
            for row in file.rows
            if (text := reference.trim(row[file.columns.index(name)], rules)) is not None
        ]
        types[name] = reference.column_type([reference.look(text, rules) for text in texts], rules)
    silver = []
    for file in files:
        rows: dict[Row, None] = {}
        for row in file.rows:
            cells = dict(zip(file.columns, row, strict=True))
            rows[tuple(_cell(cells.get(name), types[name], rules) for name in names)] = None
        silver.append(list(rows))
    gold = sorted({row for rows in silver for row in rows}, key=lambda row: [cell or "" for cell in row])
    kinds = {name: "string" if kind == "unknown" else kind for name, (kind, _) in types.items()}
    return Tables(kinds, silver, gold)


def _cell(field: str | None, kind: tuple[str, str | None], rules: Rules) -> str | None:
    text = reference.trim(field, rules)
    if text is None:
        return None
    return reference.canonical(reference.look(text, rules), *kind)
