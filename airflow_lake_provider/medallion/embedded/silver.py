"""Bronze into silver: typed, trimmed, blanks null, repeated rows of a file dropped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from airflow_lake_provider.medallion.embedded.bronze import Unit
from airflow_lake_provider.medallion.embedded.gold import Part, drop_repeats
from airflow_lake_provider.medallion.embedded.parquet import (
    copy_query,
    literal,
    local_path,
    new_data_path,
    paths_list,
)
from airflow_lake_provider.medallion.embedded.plan import Plan
from airflow_lake_provider.medallion.embedded.relations import table_relation
from airflow_lake_provider.medallion.embedded.tables import TableChange
from airflow_lake_provider.medallion.embedded.wide import WIDE, Recipe, write_wide
from airflow_lake_provider.medallion.engine import PresentFile
from airflow_lake_provider.medallion.types import ColumnSummary, TypingSettings, merge


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a source's rows: a relation, how many rows it has at most, and the data files behind it."""

    relation: str
    rows: int
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Bronze rows that are typed together: every row of ``file_ids``, in ``pieces`` of one data file of silver each.

    ``columns`` are the data columns that the relations have.
    """

    file_ids: tuple[str, ...]
    columns: frozenset[str]
    pieces: tuple[Piece, ...]

    @classmethod
    def of_unit(cls, unit: Unit) -> Source:
        """The rows of files that were just read."""
        return cls(
            tuple(sorted(file.work.file_id for file in unit.files)),
            frozenset(name for file in unit.files for name in file.columns),
            tuple(
                Piece(f"read_parquet({paths_list([path])})", footer.num_rows, (path,))
                for path, footer in zip(unit.paths, unit.footers, strict=True)
            ),
        )

    @classmethod
    def of_table(cls, schema: Schema, files: Sequence[DataFile], file_ids: Collection[str]) -> Source:
        """The rows of ``file_ids`` in data files of the bronze table.

        Data files of one file keep their number, those of several become one.
        """
        groups = [[f] for f in files] if len(file_ids) == 1 else [list(files)]
        ids = ", ".join(literal(file_id) for file_id in sorted(file_ids))
        return cls(
            tuple(sorted(file_ids)),
            frozenset(field.name for field in schema.fields),
            tuple(
                Piece(
                    f"(SELECT * FROM {table_relation([local_path(f.file_path) for f in group], schema)} "
                    f"WHERE _file_id IN ({ids}))",
                    sum(f.record_count for f in group),
                    tuple(local_path(f.file_path) for f in group),
                )
                for group in groups
            ),
        )


class SilverWriter:
    """Writes the silver rows of sources, each file by its own settings and all by the dataset's types."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        change: TableChange,
        plan: Plan,
        files: Sequence[PresentFile],
    ) -> None:
        self._connection = connection
        self._change = change
        self._types = {column.name: column.type for column in plan.typed}
        self._files = {file.file_id: file for file in files}

    def write(self, source: Source) -> list[Part]:
        """The data files with the silver rows of a source, repeated rows of a file left out."""
        parts = []
        recipes = self._recipes(source)
        schema = self._change.schema
        for piece in source.pieces:
            path = new_data_path(self._change.data_location, source.file_ids[0])
            if len(source.columns) > WIDE:
                footer = write_wide(self._connection, piece.paths, recipes, path, schema)
            else:
                query = _query(recipes, piece.relation, in_order=len(piece.paths) == 1)
                footer = copy_query(self._connection, query, path, schema, expected_rows=piece.rows)
            if footer is not None:
                parts.append(Part(path, footer, source.file_ids))
        if not parts:
            return []
        return drop_repeats(self._connection, parts, self._change.schema, self._change.data_location)

    def _recipes(self, source: Source) -> list[Recipe]:
        groups: list[tuple[TypingSettings, list[PresentFile]]] = []
        for file_id in source.file_ids:
            file = self._files[file_id]
            for typing, group in groups:
                if typing == file.settings.typing:
                    group.append(file)
                    break
            else:
                groups.append((file.settings.typing, [file]))
        return [self._recipe(source, typing, files) for typing, files in groups]

    def _recipe(self, source: Source, typing: TypingSettings, files: Sequence[PresentFile]) -> Recipe:
        summaries: dict[str, ColumnSummary] = {}
        for file in files:
            for column in file.columns:
                known = summaries.get(column.name)
                summaries[column.name] = column.summary if known is None else merge(known, column.summary)
        rejecting = typing.contract == "reject_row"
        return Recipe(
            file_ids=tuple(file.file_id for file in files),
            columns={
                name: kind
                for name, kind in self._types.items()
                if name in source.columns and (not rejecting or name in typing.types)
            },
            typing=typing,
            summaries=summaries,
            only_fitting=rejecting,
            undeclared=tuple(sorted(summaries.keys() - typing.types.keys())) if rejecting else (),
        )


def _query(recipes: Sequence[Recipe], relation: str, *, in_order: bool) -> str:
    """The query that types a relation, the rows of each file by its own recipe and all in their order."""
    if len(recipes) == 1:
        typed = recipes[0].query(relation)
        # What is read anew from several data files does not lie by the ids of its files.
        return typed if in_order else f"SELECT * FROM ({typed}) ORDER BY _file_id, _row_number"
    queries = []
    for recipe in recipes:
        ids = ", ".join(literal(file_id) for file_id in recipe.file_ids)
        queries.append(recipe.query(f"(SELECT * FROM {relation} WHERE _file_id IN ({ids}))"))
    return f"SELECT * FROM ({' UNION ALL BY NAME '.join(queries)}) ORDER BY _file_id, _row_number"
