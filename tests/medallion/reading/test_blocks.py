"""Blocks of any size give the records that the whole text has, by the definition of a record."""

from __future__ import annotations

import functools
import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lake_provider.errors import RecordsDisagree, UnclosedQuote, UnreadableFile, UnsupportedFile
from airflow_lake_provider.medallion.dialect import Dialect, ReadOptions
from airflow_lake_provider.medallion.reading import bits, exact, reader
from airflow_lake_provider.medallion.reading.exact import Exact, account
from airflow_lake_provider.medallion.reading.reader import Counts, CsvFile, Ragged, open_csv
from airflow_lake_provider.medallion.reading.records import Record, read_records
from airflow_lake_provider.medallion.reading.structure import find_structure

LINE_END = re.compile(r"\r\n|\r|\n")


def options(delimiter: str | None, quote: str | None, escape: str | None = None) -> ReadOptions:
    return ReadOptions("utf-8", delimiter or "", quote or "", escape or "", header=False, preamble=0)


def check(path: Path, text: str, given_options: ReadOptions, block_size: int) -> CsvFile | None:
    """Compare what the reader gives with the records of the whole text."""
    path.write_bytes(text.encode())
    try:
        file = open_csv(path, given_options, block_size=block_size)
    except UnsupportedFile:
        assert not text.strip(" \t\r\n")
        return None
    except UnclosedQuote:
        return None
    with file:
        unclosed = None
        records = []
        try:
            records = list(read_records(text, file.dialect, width=file.width))
        except UnclosedQuote as error:
            unclosed = error.line
        if unclosed is not None:
            with pytest.raises(UnclosedQuote) as raised:
                list(file.batches())
            assert raised.value.line == unclosed
            return file
        rows: list[list[str | None]] = []
        numbers: list[int] = []
        rescued: list[list[str] | None] = []
        for batch in file.batches():
            batch.validate(full=True)
            assert batch.schema == file.schema
            columns = [column.to_pylist() for column in batch.columns]
            rows.extend(map(list, zip(*columns[: file.width], strict=True)))
            numbers.extend(columns[-2])
            rescued.extend(columns[-1])
        width = file.width
        assert rows == [(record.fields + [None] * width)[:width] for record in records]
        assert rescued == [record.fields[width:] or None for record in records]
        assert numbers == list(range(1, len(records) + 1))
        fields = [field for record in records for field in record.fields]
        assert file.counts == Counts(len(records), len(fields), sum(len(field.encode()) for field in fields))
        assert file.short == ragged(text, [record for record in records if len(record.fields) < width])
        assert file.long == ragged(text, [record for record in records if len(record.fields) > width])
        assert file.repaired_records == ragged(text, [record for record in records if record.repaired])
        return file


def ragged(text: str, records: list[Record]) -> Ragged:
    if not records:
        return Ragged()
    return Ragged(len(records), 1 + len(LINE_END.findall(text[: records[0].start])))


DELIMITERS = st.sampled_from([",", ",", ",", ";", "\t", "|", " ", None, "::", "§", "a"])
QUOTES = st.sampled_from(['"', '"', '"', "'", None])
ESCAPES = st.sampled_from([None, None, None, "\\", "^"])
SIZES = st.sampled_from([1, 2, 3, 7, 20, 64, 200, 5000])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks") / "a.csv"


@settings(deadline=None)
@given(
    text=st.text(st.sampled_from(list(',,;"""\'\n\n\r  aé\\\0😀')) | st.characters(codec="utf-8"), max_size=60),
    delimiter=DELIMITERS,
    quote=QUOTES,
    escape=ESCAPES,
    size=SIZES,
)
def test_any_text_in_any_blocks(
    path: Path, text: str, delimiter: str | None, quote: str | None, escape: str | None, size: int
) -> None:
    check(path, text, options(delimiter, quote, escape), size)


@st.composite
def nearly_csv(draw: st.DrawFn) -> tuple[str, ReadOptions]:
    """A table in which now and then a field is malformed, a record ragged or a line empty."""
    delimiter, quote, escape = draw(DELIMITERS), draw(QUOTES), draw(ESCAPES)
    d, q = delimiter or ",", quote or '"'
    rng = random.Random(draw(st.integers(0, 2**32)))
    trouble, spaced = rng.choice([0.0, 0.1, 0.5]), rng.random() < 0.2
    width = rng.randint(1, 5)

    def field() -> str:
        if rng.random() < trouble:
            odd = [f"5{q} disk", f"x{q}{q}", f" y{q}", f"{q}a{q}b", f" {q}p{q} ", f"{q}a{q}b{d}c{q}", f"{q}o"]
            odd += [f"{escape}{q}", f"{escape}{d}", f"{q}{escape}\n{q}"] if escape else []
            return rng.choice(odd)
        plain = ["", "x", "abc", "Köln", "日本", "\0", " pad "]
        quoted = [f"{q}{inner}{q}" for inner in ("", "a", f"b{d}c", "l1\nl2", "é\r\n", f"{q}{q}", f"s{q}{q}t", " u ")]
        return rng.choice(plain + quoted)

    def record() -> str:
        fields = [field() for _ in range(rng.randint(1, 7) if rng.random() < trouble else width)]
        return (d + " " if spaced else d).join(fields) + rng.choice(["\n", "\n", "\r\n", "\r", "\n\n"])

    text = "".join(record() for _ in range(rng.randint(1, 40)))
    return text if rng.random() < 0.6 else text.rstrip("\r\n"), options(delimiter, quote, escape)


@settings(deadline=None)
@given(nearly_csv(), SIZES, st.sampled_from([1, 8, 64, 1 << 20]))
def test_nearly_well_formed_tables_in_any_blocks(
    path: Path, table: tuple[str, ReadOptions], size: int, window: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "find_structure", functools.partial(find_structure, window=window))
        # Whatever can be read from its bytes is: no block needs a second reading.
        patch.setattr(CsvFile, "_again", None)
        check(path, *table, size)


def test_quotes_within_fields_do_not_slow_a_block_down(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exact, "few", None)  # nothing is read record by record
    rows = [f'{n};5" disk, 3.5" too;"a; ""b""\nc";x"' if n % 3 else f'{n}; "y" ;z"z;"w"' for n in range(20_000)]
    file = check(path, "\n".join(rows), options(";", '"'), 100_000)
    assert file is not None
    assert (file.records, file.width, file.repaired) == (20_000, 4, 0)


def test_a_few_malformed_records_are_read_by_themselves(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    few = Exact.few

    def counted(self: Exact, *args: object, **more: object) -> list[exact.ExactRecord]:
        nonlocal read
        found = few(self, *args, **more)  # type: ignore[arg-type]
        read += len(found)
        return found

    monkeypatch.setattr(Exact, "few", counted)
    rows = [f'{n},"5" disk","a, b",x' if n % 1000 == 7 else f'{n},"a\nb","c, d",5" disk' for n in range(20_000)]
    file = check(path, "\n".join(rows), options(",", '"'), 1 << 20)
    assert file is not None
    assert file.repaired == 20
    assert 20 <= read < 100


def test_ragged_records_are_not_read_by_themselves(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exact, "few", None)
    rows = [",".join(map(str, range(n % 9 + 1))) for n in range(20_000)]
    file = check(path, "\r\n".join(["a,b,c,d,e"] * 20_000 + rows), options(",", '"'), 100_000)
    assert file is not None
    assert (file.short.count, file.long.count) == (8_890, 8_888)
    assert file.short.first_line == 20_001


def test_very_wide_records_among_narrow_ones(path: Path) -> None:
    rows = ["1,2"] * 300 + [",".join(["x"] * 5000)] + ["3", ",,," + "," * 900, '"4",5,"6\n"'] * 30
    check(path, "\n".join(rows), options(",", '"'), 50_000)
    check(path, "\n".join(rows).replace('"', "'"), options(",", None), 50_000)


def test_a_field_much_longer_than_a_block(path: Path) -> None:
    text = "a,b\n1," + '"' + 'x, ""y""\n' * 50_000 + '"\n2,' + "z" * 300_000 + "\n3,c\n"
    file = check(path, text, options(",", '"'), 1000)
    assert file is not None
    assert file.records == 4


def test_spaces_in_long_runs_around_quotes(path: Path) -> None:
    text = "".join(f'{n},{" " * (n * 7)}"a{n}"{" " * (n * 5)},x\n' for n in range(60))
    check(path, text, options(",", '"'), 1 << 20)


def test_a_malformed_record_looks_ahead_only_so_far(path: Path) -> None:
    # Its width fits no reading, so the end of the text would decide: and that may be far away.
    text = 'a,b\n"x"y,1,2\n' + "c,d\n" * 100
    rows = []
    for size in (10, 50, 100_000):
        path.write_bytes(text.encode())
        with open_csv(path, options(",", '"'), block_size=size) as file:
            file._exact = Exact(file.name, file.dialect, file.width, lookahead=64)
            rows.append([batch.to_pylist() for batch in file.batches()])
            assert file.repaired == 1
            assert file.records == 102
    flat = [[row for batch in batches for row in batch] for batches in rows]
    assert flat[0] == flat[1] == flat[2]
    assert flat[0][1] == {"column_1": '"x"y', "column_2": "1", "_row_number": 2, "_rescued": ["2"]}


@settings(deadline=None)
@given(nearly_csv(), st.sampled_from([8, 20, 60]), st.integers(0, 3))
def test_far_text_decides_the_same_wherever_blocks_end(
    path: Path, table: tuple[str, ReadOptions], lookahead: int, trial: int
) -> None:
    text, given_options = table
    path.write_bytes(text.encode())
    seen: list[object] = []
    for size in (3 + trial, 50, 5000):
        try:
            with open_csv(path, given_options, block_size=size) as file:
                file._exact = Exact(file.name, file.dialect, file.width, lookahead=lookahead)
                rows = [row for batch in file.batches() for row in batch.to_pylist()]
                seen.append((rows, file.counts, file.repaired_records))
        except UnreadableFile as error:
            seen.append((type(error), error.line))
    assert seen[0] == seen[1] == seen[2]


def test_text_behind_its_horizon_says_nothing_about_a_malformed_record(path: Path) -> None:
    rows = 'a\nb\nc\n"l1\nl2":: "s""t":: "s""t":: "s""t":: "é\r\n"\n\rKöln\n\x00\n'
    path.write_bytes(rows.encode())
    seen = []
    for size in (3, 50, 5000):
        with open_csv(path, options("::", '"', "\\"), block_size=size) as file:
            file._exact = Exact(file.name, file.dialect, file.width, lookahead=8)
            seen.append([row["column_1"] for batch in file.batches() for row in batch.to_pylist()])
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("delimiter", ["::", ","])
def test_blocks_longer_than_malformed_records_may_look(path: Path, delimiter: str) -> None:
    text = "".join(f'{n}::"x"y::a\n' if n % 5000 == 9 else f"{n}::b::c\n" for n in range(60_000))
    file = check(path, text.replace("::", delimiter), options(delimiter, '"'), 8 << 20)
    assert file is not None
    assert (file.records, file.repaired) == (60_000, 12)


@pytest.mark.parametrize("spoil", ["drop a row", "lose text", "fail"])
def test_a_tokenizer_that_disagrees_is_not_believed(path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str) -> None:
    tokenize = pyarrow.csv.read_csv

    def spoiled(*args: object, **more: object) -> pa.Table:
        if spoil == "fail":
            raise pa.ArrowInvalid("no")
        table = tokenize(*args, **more)
        if spoil == "drop a row":
            return table.slice(1)
        return table.set_column(0, table.field(0), pa.chunked_array([["x"] * table.num_rows]))

    monkeypatch.setattr(pyarrow.csv, "read_csv", spoiled)
    check(path, "".join(f'{n * 1000},"a, {n}",c\n' for n in range(500)), options(",", '"'), 1000)
    check(path, "".join(f"{n * 1000},a,c\n" if n % 5 else "1,2\n" for n in range(500)), options(",", '"'), 1000)


def test_a_structure_that_is_wrong_fails_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: object, **more: object) -> object:
        structure = find_structure(*args, **more)  # type: ignore[arg-type]
        structure.end = max(structure.end - 2, 0)
        structure.records += 1
        return structure

    monkeypatch.setattr(reader, "find_structure", wrong)
    path.write_bytes(b"aa,bb\n" * 100)
    with open_csv(path, options(",", '"'), block_size=60) as file, pytest.raises(RecordsDisagree, match="line 1 on"):
        list(file.batches())


@pytest.mark.parametrize(
    "fields",
    [
        [["a", "b"], ["c"]],
        [["a", "b"], ["c", "d"]],
        [["a", "b"], ["c", "x"], []],
        [["b", "a"], ["c", "d,e"]],
        [["a", " b"], ["c", "d,e"]],
    ],
)
def test_the_account_of_a_stretch_notices_what_is_lost(fields: list[list[str]]) -> None:
    text = 'a,b\r\n\r\nc,"d,e"\n'
    right = list(read_records(text, Dialect()))
    assert account("a.csv", text, right, len(text), Dialect()) == 6
    wrong = [record._replace(fields=list(given)) for record, given in zip(right, fields, strict=False)]
    with pytest.raises(RecordsDisagree, match="line 1 on"):
        account("a.csv", text, wrong, len(text), Dialect())


def test_the_account_of_a_stretch_notices_gaps() -> None:
    text = "a,b\n\nc,d\ne,f\n"
    first, second, third = read_records(text, Dialect())
    assert account("a.csv", text, [first, second, third], len(text), Dialect()) == 6
    for records in ([first, third], [first, second], [first, second, second, third]):
        with pytest.raises(RecordsDisagree):
            account("a.csv", text, records, len(text), Dialect())


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=400), st.integers(0, 400), st.integers(0, 255))
def test_bitmaps(data: bytes, place: int, byte: int) -> None:
    array = np.frombuffer(data, np.uint8)
    byte = data[byte % len(data)]
    place = min(place, len(data))
    words = bits.bits_of(array, byte)
    where = [index for index, value in enumerate(data) if value == byte]
    assert bits.positions_of(words).tolist() == where
    assert bits.count(words) == len(where)
    assert bits.first_bit(words) == where[0]
    assert bits.last_bit(words, place) == max((index for index in where if index < place), default=-1)
    assert bits.positions_of(bits.keep_before(words, place)).tolist() == [i for i in where if i < place]
    assert [i for i in bits.positions_of(bits.after(words, False)).tolist() if i < len(data)] == [
        i + 1 for i in where if i + 1 < len(data)
    ]
    assert bits.positions_of(bits.ahead(words)).tolist() == [i - 1 for i in where if i]
    odd = np.cumsum(array == byte) % 2 == 1
    assert bits.flags_of(bits.parity(words), 0, len(data)).tolist() == odd.tolist()
    assert bits.flags_of(words, place // 2, place).tolist() == (array[place // 2 : place] == byte).tolist()
    places = np.array([0, place, len(data)])
    assert bits.counts_before(words, places).tolist() == [sum(i < p for i in where) for p in places.tolist()]
    assert bits.positions_of(bits.bits_at(np.array(where), len(data))).tolist() == where
