"""The files whose rows a dataset's tables hold, and what is kept of them in parts.

To know what thousands of files say together, they need not be read one by one again each time a file comes or goes. The
ledger keeps a value for every few hundred of them, made by whoever knows what it means. A part is in force while the
files in its range are those, in that state, of which the value was made; any change makes it void. The parts of a
dataset follow each other without gaps: each reaches from where the one before ends to its ``last`` file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Connection, Row, delete, func, literal_column, select, true
from sqlalchemy.dialects.postgresql import insert

from airflow_lake_provider.ledger.records import Dataset, File
from airflow_lake_provider.ledger.schema import files, present_parts
from airflow_lake_provider.ledger.transitions import file_select, to_file

PART_FILES: Final = 256

# A number that changes with every write to a file's row; the sum of those of a part's files is the part's digest.
_TOKEN: Final = literal_column(
    "('x' || left(md5(files.file_id || ' ' || (extract(epoch FROM files.updated_at) * 1000000)::bigint), 16))"
    "::bit(64)::bigint",
    BigInteger,
)


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the files that the tables hold, in the order of upload, up to the one with ``last`` as its ``seq``.

    ``value`` is what was kept of them, None where there is nothing. ``files`` are those that are not in it: with them
    it is to be made anew. ``digest`` stands for all ``number`` files as they are now.
    """

    last: int
    number: int
    digest: int
    value: Mapping[str, Any] | None
    files: tuple[File, ...] = ()

    def made(self, value: Mapping[str, Any]) -> Part:
        """The part with a value that was made of all its files."""
        return replace(self, value=value, files=())


def there(dataset_id: Any, without: Collection[str]) -> list[ColumnElement[bool]]:
    """The conditions for the files whose rows the tables of a dataset hold, but for those named.

    A file that was ready and waits to be read again is one of them: its rows stay until then.
    """
    return [
        files.c.dataset_id == dataset_id,
        files.c.status.in_(("ready", "uploaded", "processing")),
        files.c.settings_version.is_not(None),
        *([files.c.file_id.not_in(without)] if without else []),
    ]


def load(connection: Connection, dataset: Dataset, without: Collection[str]) -> list[Part]:
    """All files that the tables hold, in parts, but for the files ``without``."""
    parts: list[Part] = []
    after = 0
    for row in connection.execute(_kept(dataset, without)):
        if (row.number, int(row.digest)) == (row.number_now, int(row.digest_now)):
            parts.append(Part(row.last_seq, row.number, int(row.digest), row.joined))
        else:
            parts += _pieces(_files(connection, dataset.id, without, after, row.last_seq), last=row.last_seq)
        after = row.last_seq
    new = _files(connection, dataset.id, without, after, None)
    if new and parts and not parts[-1].files and parts[-1].number < PART_FILES:
        parts[-1], new = _grown(parts[-1], new)
    return [*parts, *_pieces(new)]


def keep(connection: Connection, dataset: Dataset, parts: Sequence[Part], changed: Collection[int]) -> None:
    """Keep these parts, which are all there are; those whose ``last`` is in ``changed`` are not kept like that yet."""
    connection.execute(
        delete(present_parts).where(
            present_parts.c.dataset_id == dataset.id,
            present_parts.c.last_seq.not_in([part.last for part in parts if part.last not in changed]),
        )
    )
    rows = [
        {
            "dataset_id": dataset.id,
            "last_seq": part.last,
            "settings_version": dataset.settings_version,
            "number": part.number,
            "digest": part.digest,
            "joined": part.value,
        }
        for part in parts
        if part.last in changed
    ]
    if rows:
        # Somebody else may do the same at this moment; whatever is not right is found out by its digest.
        connection.execute(insert(present_parts).on_conflict_do_nothing(), rows)


def _kept(dataset: Dataset, without: Collection[str]) -> Any:
    """What is kept of the dataset, each part with what its digest would be now."""
    part = (
        select(
            present_parts,
            func.lag(present_parts.c.last_seq, 1, 0).over(order_by=present_parts.c.last_seq).label("after_seq"),
        )
        .where(present_parts.c.dataset_id == dataset.id, present_parts.c.settings_version == dataset.settings_version)
        .subquery("part")
    )
    now = (
        select(func.count().label("number_now"), func.coalesce(func.sum(_TOKEN), 0).label("digest_now"))
        .where(*there(part.c.dataset_id, without), files.c.seq > part.c.after_seq, files.c.seq <= part.c.last_seq)
        .lateral("now")
    )
    return select(part, now).join(now, true()).order_by(part.c.last_seq)


def _files(
    connection: Connection, dataset_id: int, without: Collection[str], after: int, until: int | None
) -> list[tuple[File, int]]:
    """The files with their tokens, of a range of ``seq``."""
    conditions = [*there(dataset_id, without), files.c.seq > after]
    if until is not None:
        conditions.append(files.c.seq <= until)
    query = file_select().add_columns(_TOKEN.label("token"))
    rows: Iterable[Row[Any]] = connection.execute(query.where(*conditions).order_by(files.c.seq))
    return [(to_file(row), row.token) for row in rows]


def _pieces(found: Sequence[tuple[File, int]], *, last: int | None = None) -> list[Part]:
    """Files in parts of their own; ``last`` is where the range ends of which they are."""
    parts = [
        Part(piece[-1][0].seq, len(piece), sum(token for _, token in piece), None, tuple(file for file, _ in piece))
        for piece in (found[start : start + PART_FILES] for start in range(0, len(found), PART_FILES))
    ]
    if parts and last is not None:
        parts[-1] = replace(parts[-1], last=last)
    return parts


def _grown(part: Part, new: list[tuple[File, int]]) -> tuple[Part, list[tuple[File, int]]]:
    """A part with the files that it has room for, and those that are left."""
    added, left = new[: PART_FILES - part.number], new[PART_FILES - part.number :]
    grown = Part(
        added[-1][0].seq,
        part.number + len(added),
        part.digest + sum(token for _, token in added),
        part.value,
        tuple(file for file, _ in added),
    )
    return grown, left
