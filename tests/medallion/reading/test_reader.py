"""The reader as a whole: whatever way a table is written, the same table comes out."""

from __future__ import annotations

import codecs
import gzip
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_lake_provider.errors import (
    NotFound,
    SettingsError,
    UnclosedQuote,
    UndecodableFile,
    UnreadableFile,
    UnsupportedFile,
)
from airflow_lake_provider.medallion.dialect import ReadOptions
from airflow_lake_provider.medallion.reading import Counts, CsvFile, Limits, Ragged, open_csv

Rows = list[list[str | None]]


def write(folder: Path, text: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(file: CsvFile) -> Rows:
    """All rows, without row numbers, and with surplus fields at the end."""
    rows: Rows = []
    for batch in file.batches():
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            assert row[-2] == len(rows) + 1
            rows.append([*row[:-2], *(row[-1] or [])])
    return rows


def test_an_ordinary_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'Id,Full Name,Note\n1,"Müller, A.",\n2,Zoë,"two\nlines"\n3,"say ""hi"""," x "\n')
    with open_csv(path) as file:
        assert file.name == "a.csv"
        assert file.header == ["Id", "Full Name", "Note"]
        assert file.columns == ["id", "full_name", "note"]
        assert (file.width, file.preamble, file.dialect.delimiter, file.dialect.encoding) == (3, 0, ",", "utf-8")
        (batch,) = file.batches()
        assert batch.schema == file.schema
        assert batch.schema.types == [pa.string()] * 3 + [pa.int64(), pa.list_(pa.string())]
        assert batch.to_pylist() == [
            {"id": "1", "full_name": "Müller, A.", "note": "", "_row_number": 1, "_rescued": None},
            {"id": "2", "full_name": "Zoë", "note": "two\nlines", "_row_number": 2, "_rescued": None},
            {"id": "3", "full_name": 'say "hi"', "note": " x ", "_row_number": 3, "_rescued": None},
        ]
        assert file.counts == Counts(3, 9, 38)
        assert (file.records, file.short, file.long, file.repaired) == (3, Ragged(), Ragged(), 0)


def test_ragged_records_keep_everything_and_are_counted(tmp_path: Path) -> None:
    with open_csv(write(tmp_path, 'a,b,c\n1,2,3\n4,5\n6,7,8,9,"10,"\n"",\n')) as file:
        assert read(file) == [
            ["1", "2", "3"],
            ["4", "5", None],
            ["6", "7", "8", "9", "10,"],
            ["", "", None],
        ]
        assert (file.short, file.long) == (Ragged(2, 3), Ragged(1, 4))
        assert file.counts == Counts(4, 12, 12)
        noted = {doubt.code: (doubt.count, doubt.line) for doubt in file.doubts}
        assert noted["records_short"] == (2, 3)
        assert noted["records_long"] == (1, 4)


def test_doubts_about_the_sample_give_way_to_those_about_the_file(tmp_path: Path) -> None:
    text = "a,b\n" + "1\n" + "1,2\n" * 400_000 + "1,2,3\n" + '"x"y,2\n'
    with open_csv(write(tmp_path, text)) as file:
        codes = [doubt.code for doubt in file.doubts]
        assert "records_long" not in codes
        for _ in range(2):
            assert sum(batch.num_rows for batch in file.batches()) == 400_003
            counted = {doubt.code: (doubt.count, doubt.line) for doubt in file.doubts}
            assert counted["records_short"] == (1, 2)
            assert counted["records_long"] == (1, 400_003)
            assert counted["quoting_malformed"] == (1, 400_004)
            assert [doubt.code for doubt in file.doubts].count("records_short") == 1


def test_a_header_that_is_one_name_short(tmp_path: Path) -> None:
    with open_csv(write(tmp_path, "a,b\n" + "x1,y1,z1\nx2,y2,z2\n" * 3)) as file:
        assert read(file) == [["x1", "y1", "z1"], ["x2", "y2", "z2"]] * 3
        assert file.long == Ragged(6, 2)
        assert "header_short" in [doubt.code for doubt in file.doubts]


def test_header_and_preamble_as_they_are_set(tmp_path: Path) -> None:
    path = write(tmp_path, "Report,x\n\nid,n\nb,c\n")
    with open_csv(path, ReadOptions(header=False, preamble=0)) as file:
        assert (file.header, file.columns) == (None, ["column_1", "column_2"])
        assert read(file) == [["Report", "x"], ["id", "n"], ["b", "c"]]
    with open_csv(path, ReadOptions(header=True, preamble=1)) as file:
        assert (file.header, file.preamble) == (["id", "n"], 1)
        assert read(file) == [["b", "c"]]
    with pytest.raises(UnreadableFile, match="nothing behind its preamble of 9 records"):
        open_csv(path, ReadOptions(preamble=9))


def test_lines_are_counted_from_the_top_of_the_file(tmp_path: Path) -> None:
    text = 'Report of today\r\n\r\nid;note;n\r\n1;"a\r\nb";2\r\n2;c\r\n3;"never\r\n4;d;5\r\n'
    with open_csv(write(tmp_path, text), ReadOptions(preamble=1)) as file:
        assert (file.preamble, file.header) == (1, ["id", "note", "n"])
        with pytest.raises(UnclosedQuote, match="line 7") as error:
            read(file)
        assert error.value.line == 7


def test_an_unclosed_quote_behind_blank_lines(tmp_path: Path) -> None:
    with pytest.raises(UnclosedQuote) as error, open_csv(write(tmp_path, '\r\n\n\r"a\n')) as file:
        read(file)
    assert error.value.line == 4


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
def test_line_ends_split_between_blocks_are_one(tmp_path: Path, size: int) -> None:
    text = "a,b\r\n" + "1,2\r\n" * 20 + "3\r\n"
    with open_csv(write(tmp_path, text), block_size=size) as file:
        assert len(read(file)) == 21
        assert file.short == Ragged(1, 22)


@pytest.mark.parametrize("text", ["", "\n", "\r\n\r\n", " \n\t\n", "\ufeff", "\ufeff\n", "\n" * 3_000_000])
@pytest.mark.parametrize("packed", [False, True])
def test_an_empty_file_is_no_table(tmp_path: Path, text: str, packed: bool) -> None:
    data = gzip.compress(text.encode()) if packed else text.encode()
    with pytest.raises(UnsupportedFile, match=r"a\.csv is empty"):
        open_csv(write(tmp_path, data))


def test_a_header_alone_has_columns_and_no_rows(tmp_path: Path) -> None:
    for text in ("id,name", "id,name\n", "id,name\r\n\r\n"):
        with open_csv(write(tmp_path, text)) as file:
            assert file.columns == ["id", "name"]
            assert list(file.batches()) == []
            assert file.counts == Counts()


def test_blank_lines_in_front_of_a_large_file(tmp_path: Path) -> None:
    with open_csv(write(tmp_path, "\r\n" * 600_000 + "a,b\r\n1,2\r\n3\r\n")) as file:
        assert file.header == ["a", "b"]
        assert read(file) == [["1", "2"], ["3", None]]
        assert file.short == Ragged(1, 600_003)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_mark_in_front_of_a_quoted_header(tmp_path: Path, encoding: str) -> None:
    with open_csv(write(tmp_path, '"Id, no","b"\n"1","2"\n'.encode(encoding))) as file:
        assert file.header == ["Id, no", "b"]
        assert read(file) == [["1", "2"]]


def test_a_legacy_encoding_is_a_doubt(tmp_path: Path) -> None:
    path = write(tmp_path, "n;ort;preis\r\n1;Köln;1.234,50\r\n2;Ömlar;–\r\n".encode("cp1252"))
    with open_csv(path) as file:
        assert read(file) == [["1", "Köln", "1.234,50"], ["2", "Ömlar", "–"]]
        assert file.dialect.encoding == "cp1252"
        assert [doubt.setting for doubt in file.doubts if doubt.code == "encoding_guessed"] == ["encoding"]


def test_a_set_encoding_that_fails_late_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, b"a,b\n" + b"1,x\n" * 700_000 + b"2,\x81\n")
    with open_csv(path, ReadOptions(encoding="cp1252")) as file, pytest.raises(UndecodableFile) as error:
        read(file)
    assert error.value.line == 700_002


def test_gzip_is_read_like_the_file_itself(tmp_path: Path) -> None:
    text = "a,b\n" + "".join(f'{n},"x\n{n}"\n' for n in range(5000))
    half = len(text) // 2
    data = gzip.compress(text[:half].encode()) + gzip.compress(text[half:].encode())
    with open_csv(write(tmp_path, data, "a.csv.gz")) as file:
        packed = read(file)
    with open_csv(write(tmp_path, text)) as file:
        assert read(file) == packed
    with pytest.raises(UnreadableFile, match="ends too early"):
        open_csv(write(tmp_path, data[:-5], "b.csv"))


def test_spaces_after_delimiters_belong_to_the_dialect_if_they_are_everywhere(tmp_path: Path) -> None:
    regular = "a, b, c\n" + '1, "x, y", z\n' * 100_000
    with open_csv(write(tmp_path, regular)) as file:
        assert file.dialect.skip_initial_space
        assert read(file)[-1] == ["1", "x, y", "z"]
    with open_csv(write(tmp_path, regular + "2,u, v\n")) as file:
        assert not file.dialect.skip_initial_space
        rows = read(file)
        assert (rows[0], rows[-1]) == (["1", "x, y", " z"], ["2", "u", " v"])


def test_batches_are_bounded(tmp_path: Path) -> None:
    with open_csv(write(tmp_path, "a,b\n" + "1,\n" * 500_000), block_size=16 << 20) as file:
        sizes = [batch.num_rows for batch in file.batches()]
        assert max(sizes) <= 65_536
        assert sum(sizes) == 500_000
    with open_csv(write(tmp_path, "a,b\n" + f"1,{'x' * 1_000_000}\n" * 80), block_size=100 << 20) as file:
        sizes = [batch.nbytes for batch in file.batches()]
        assert max(sizes) <= 33 << 20


def test_a_record_longer_than_allowed_is_refused(tmp_path: Path) -> None:
    text = "a,b\n1,2\n3," + '"' + "x\n" * 1_500_000 + '"\n'
    limits = Limits(max_record_bytes=1 << 20)
    with (
        open_csv(write(tmp_path, text), ReadOptions(None, ",", '"'), limits=limits, block_size=1 << 16) as file,
        pytest.raises(UnclosedQuote, match="line 3 that does not end within 1,048,576 bytes") as error,
    ):
        read(file)
    assert error.value.line == 3
    with pytest.raises(UnsupportedFile, match="first record does not end"):
        open_csv(
            write(tmp_path, '"' + "x\n" * 600_000 + '"\n'),
            ReadOptions(quote='"'),
            limits=Limits(max_record_bytes=500_000),
        )


def test_a_first_field_longer_than_the_sample(tmp_path: Path) -> None:
    text = '"' + "x\n" * 1_000_000 + '",1\n"y",2\n'
    with open_csv(write(tmp_path, text), ReadOptions(header=False, delimiter=",", quote='"')) as file:
        rows = read(file)
        assert [len(str(row[0])) for row in rows] == [2_000_000, 1]
        assert [row[1] for row in rows] == ["1", "2"]


def test_five_thousand_columns(tmp_path: Path) -> None:
    header = ",".join(f"c{n}" for n in range(5000))
    path = write(tmp_path, header + "\n" + (",".join(["7"] * 5000) + "\n") * 40 + "1,2\n")
    with open_csv(path) as file:
        batches = list(file.batches())
        assert file.width == 5000
        assert sum(batch.num_rows for batch in batches) == 41
        assert batches[-1].column(4999).null_count == 1
        assert file.short == Ragged(1, 42)


def test_batches_may_be_left_early(tmp_path: Path) -> None:
    with open_csv(write(tmp_path, "a,b\n" + "1,2\n" * 100_000), block_size=10_000) as file:
        assert next(file.batches()).num_rows > 0
        assert len(read(file)) == 100_000


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"^upload\.csv cannot be read"):
        open_csv(tmp_path / "x", name="upload.csv")
    with pytest.raises(SettingsError, match="nonsense"):
        open_csv(write(tmp_path, "a,b\n"), ReadOptions(encoding="nonsense"))


def test_the_package_itself_is_light() -> None:
    code = "import sys, airflow_lake_provider.medallion.reading as r; print('pyarrow' in sys.modules, r.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ['ConvertResult', 'Counts', 'CsvFile', 'Limits', 'Ragged'")


ENCODINGS = {
    "utf-8": b"",
    "utf-8-sig": b"",
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    width = draw(st.integers(1, 5))
    cells = st.text(st.sampled_from(list("abc019 .,;|\t\"'\n\r\\äß€😀\0")) | st.characters(codec="utf-8"), max_size=9)
    return draw(st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=12))


@settings(deadline=None)
@given(
    table=tables(),
    delimiter=st.sampled_from([",", ";", "\t", "|", "::", "§"]),
    quote=st.sampled_from(['"', "'"]),
    always=st.booleans(),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    last=st.booleans(),
    encoding=st.sampled_from(list(ENCODINGS)),
    packed=st.booleans(),
    size=st.sampled_from([1, 7, 50, 1000]),
)
def test_any_table_in_any_dialect_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    table: Rows,
    delimiter: str,
    quote: str,
    always: bool,
    line_end: str,
    last: bool,
    encoding: str,
    packed: bool,
    size: int,
) -> None:
    special = {*delimiter, quote, "\r", "\n", " "}

    def field(text: str | None, alone: bool) -> str:
        assert text is not None
        if always or special & set(text) or (alone and not text):
            return quote + text.replace(quote, quote * 2) + quote
        return text

    lines = [delimiter.join(field(text, len(row) == 1) for text in row) for row in table]
    text = line_end.join(lines) + (line_end if last else "")
    assume(text.strip(" \t\r\n\ufeff"))
    data = ENCODINGS[encoding] + text.encode(encoding)
    assume(encoding != "utf-8" or not text.startswith("\ufeff"))
    path = tmp_path_factory.getbasetemp() / "table.csv"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    one = delimiter if len(table[0]) > 1 else ""
    options = ReadOptions(encoding.removesuffix("-sig"), one, quote, "", header=False, preamble=0)
    with open_csv(path, options, block_size=size) as file:
        assert read(file) == table
        assert file.counts.records == len(table)
