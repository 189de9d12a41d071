"""What is known of the files whose rows a dataset's tables hold: of all of them together, and of each by itself.

Most work needs the first alone, which stays small however many files there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.medallion.types import ColumnSummary, ColumnType, merge

if TYPE_CHECKING:
    from airflow_lake_provider.medallion.engine import PresentFile
    from airflow_lake_provider.medallion.types.model import DateOrder


class Joined:
    """What some files of a dataset say about its columns, taken together.

    Files may be added, and joins merged, in any order and grouping, each file once: the outcome is the same. Files are
    in the order of their ids, which is that of their upload.

    ``number`` of files; ``first`` has for each column the file that brought it first and its place there, ``docs`` the
    first header text with the file it is of; ``summaries`` what the values are, ``valued`` the columns that have any;
    ``declared`` the types that files declare, ``strict`` the columns to which a contract holds them; ``date_order`` is
    the dataset's.
    """

    def __init__(self, files: Iterable[PresentFile] = ()) -> None:
        self.number = 0
        self.first: dict[str, tuple[str, int]] = {}
        self.docs: dict[str, tuple[str, str]] = {}
        self.summaries: dict[str, ColumnSummary] = {}
        self.valued: set[str] = set()
        self.declared: dict[str, set[ColumnType]] = {}
        self.strict: set[str] = set()
        self.date_order: DateOrder | None = None
        self.add(files)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Joined) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def columns(self) -> list[str]:
        """The names of all columns: by the file that brought each first, then by their places in it."""
        return sorted(self.first, key=self.first.__getitem__)

    def add(self, files: Iterable[PresentFile]) -> None:
        """Take files in that are not in yet."""
        for file in files:
            self.number += 1
            rules = file.settings.typing
            self.date_order = rules.date_order
            if rules.contract != "evolve":
                self.strict.update(rules.types)
            for name, kind in rules.types.items():
                self.declared.setdefault(name, set()).add(kind)
            for place, column in enumerate(file.columns):
                self._see(column.name, (file.file_id, place))
                if column.doc is not None:
                    self._head(column.name, (file.file_id, column.doc))
                if column.summary.count:
                    self.valued.add(column.name)
                # A column that such a file does not declare stays in bronze alone.
                if rules.contract != "reject_row" or column.name in rules.types:
                    self._measure(column.name, column.summary)

    def merge(self, other: Joined) -> None:
        """Take in what another join, of other files, has."""
        if not other.number:
            return
        self.number += other.number
        self.date_order = other.date_order
        for name, where in other.first.items():
            self._see(name, where)
        for name, text in other.docs.items():
            self._head(name, text)
        for name, summary in other.summaries.items():
            self._measure(name, summary)
        self.valued |= other.valued
        for name, kinds in other.declared.items():
            self.declared.setdefault(name, set()).update(kinds)
        self.strict |= other.strict

    def with_files(self, files: Iterable[PresentFile]) -> Joined:
        """A join of these files too."""
        joined = Joined()
        joined.merge(self)
        joined.add(files)
        return joined

    def to_dict(self) -> dict[str, Any]:
        """JSON values, the same for equal joins."""
        return {
            "number": self.number,
            "date_order": self.date_order,
            "columns": [
                [
                    name,
                    *self.first[name],
                    list(self.docs[name]) if name in self.docs else None,
                    summary.to_dict() if (summary := self.summaries.get(name)) is not None else None,
                    name in self.valued,
                ]
                for name in self.columns()
            ],
            "declared": {name: sorted(map(str, kinds)) for name, kinds in sorted(self.declared.items())},
            "strict": sorted(self.strict),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Joined:
        """The inverse of ``to_dict``; raises ValueError for summaries of another version."""
        joined = cls()
        joined.number = data["number"]
        joined.date_order = data["date_order"]
        for name, file_id, place, head, summary, valued in data["columns"]:
            joined.first[name] = (file_id, place)
            if head is not None:
                joined.docs[name] = (head[0], head[1])
            if summary is not None:
                joined.summaries[name] = ColumnSummary.from_dict(summary)
            if valued:
                joined.valued.add(name)
        joined.declared = {name: set(map(ColumnType.parse, kinds)) for name, kinds in data["declared"].items()}
        joined.strict = set(data["strict"])
        return joined

    def _see(self, name: str, where: tuple[str, int]) -> None:
        known = self.first.get(name)
        if known is None or where < known:
            self.first[name] = where

    def _head(self, name: str, text: tuple[str, str]) -> None:
        known = self.docs.get(name)
        if known is None or text < known:
            self.docs[name] = text

    def _measure(self, name: str, summary: ColumnSummary) -> None:
        known = self.summaries.get(name)
        self.summaries[name] = summary if known is None else merge(known, summary)


class Present:
    """The files whose rows a dataset's tables hold, as ``joined`` and, once somebody asks, one by one.

    ``load`` gives the files; it may raise CommitConflict where they are no longer those that were joined.
    """

    def __init__(self, joined: Joined, load: Callable[[], Sequence[PresentFile]]) -> None:
        self.joined = joined
        self._load = load

    @classmethod
    def of(cls, files: Sequence[PresentFile]) -> Present:
        """These files, which are at hand."""
        return cls(Joined(files), lambda: files)

    def __bool__(self) -> bool:
        return self.joined.number > 0

    @cached_property
    def files(self) -> Sequence[PresentFile]:
        """Each file with its own columns and settings."""
        return self._load() if self else ()

    def with_files(self, new: Sequence[PresentFile]) -> Present:
        """These files and new ones."""
        return Present(self.joined.with_files(new), lambda: [*self.files, *new])
