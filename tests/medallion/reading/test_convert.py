"""Files written anew as plain CSV."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_lake_provider.errors import NotFound, SettingsError, StorageError, UnclosedQuote, UnsupportedFile
from airflow_lake_provider.medallion.dialect import Dialect, ReadOptions
from airflow_lake_provider.medallion.reading import ConvertResult, Counts, convert_files
from airflow_lake_provider.medallion.reading.records import read_records


def write(folder: Path, text: str | bytes, name: str = "a.csv") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def convert(folder: Path, text: str | bytes, name: str = "a.csv", **settings_: object) -> str:
    path = write(folder / "in", text, name)
    (result,) = convert_files([path], folder / "out", options=ReadOptions(**settings_))  # type: ignore[arg-type]
    assert result.error is None
    assert result.output is not None
    assert [entry.name for entry in (folder / "out").iterdir()] == [result.output.name]
    return result.output.read_bytes().decode()


def test_a_foreign_dialect_becomes_plain_csv(tmp_path: Path) -> None:
    text = "n;Ort;Preis\r\n1;'Köln; Mitte';1,50\r\n2;'it''s';\"x\"\r\n\r\n3; y ;z\r\n"
    converted = convert(tmp_path, text.encode("cp1252"), delimiter=";", quote="'")
    assert converted == 'n,Ort,Preis\n1,Köln; Mitte,"1,50"\n2,it\'s,"""x"""\n3, y ,z\n'


def test_ragged_records_keep_the_fields_that_they_have(tmp_path: Path) -> None:
    converted = convert(tmp_path, 'a;b;c\n1;2;3\n4;5\n6;7;8;9;"10,"\n;\n"";\n', delimiter=";")
    assert converted == 'a,b,c\n1,2,3\n4,5\n6,7,8,9,"10,"\n,\n,\n'


def test_a_record_of_one_empty_field_is_no_empty_line(tmp_path: Path) -> None:
    assert convert(tmp_path, 'a\nx\n""\n\ny\n', delimiter="") == 'a\nx\n""\ny\n'
    assert convert(tmp_path, 'a,b\nx,y\n""\n1,2\n', delimiter=",") == 'a,b\nx,y\n""\n1,2\n'


def test_quotes_are_where_they_are_needed(tmp_path: Path) -> None:
    text = 'a|"b|c"|d\n" x "|"l1\nl2"|"r\r"\n"q""q"|"1,2"|\n'
    assert convert(tmp_path, text, delimiter="|") == 'a,b|c,d\n x ,"l1\nl2","r\r"\n"q""q","1,2",\n'


def test_no_header_is_made_up_and_no_preamble_kept(tmp_path: Path) -> None:
    assert convert(tmp_path, "1\t2024-01-01\n2\t2024-01-02\n") == "1,2024-01-01\n2,2024-01-02\n"
    assert convert(tmp_path, "Report\n\nid;x\n1;a\n2;b\n3;c\n", preamble=1) == "id,x\n1,a\n2,b\n3,c\n"


def test_a_mark_is_left_out_and_a_character_like_it_is_kept(tmp_path: Path) -> None:
    assert convert(tmp_path, '"a","b"\n1,2\n'.encode("utf-8-sig")) == "a,b\n1,2\n"
    doubled = b"\xef\xbb\xbf" * 2
    assert convert(tmp_path, doubled + b"a,b\n1,2\n", header=True) == '"\ufeffa",b\n1,2\n'
    assert convert(tmp_path, doubled + b"1,2\n3,4\n", header=False) == '"\ufeff1",2\n3,4\n'


@pytest.mark.parametrize("name", ["b.csv.gz", "b.csv.GZ", "b.csv"])
def test_gzip_is_unpacked(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "in", gzip.compress(b"a;b\n1;2\n"), name)
    (result,) = convert_files([path], tmp_path / "out")
    assert result.output == tmp_path / "out" / "b.csv"
    assert result.output.read_bytes() == b"a,b\n1,2\n"
    assert result.counts == Counts(1, 2, 2)
    assert result.dialect is not None
    assert result.dialect.delimiter == ";"


def test_failures_leave_nothing_and_stop_nothing(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, "id;note\n1;ok\n", "good.csv"),
        write(tmp_path, 'id;note\n1;ok\n3;"never\n', "open.csv"),
        tmp_path / "gone.csv",
        write(tmp_path, "", "empty.csv"),
        write(tmp_path, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(40), "image.csv"),
        write(tmp_path, "x,y\n1,2\n", "last.csv"),
    ]
    older = write(tmp_path / "out", "older\n", "open.csv")
    seen: list[ConvertResult] = []
    results = convert_files(paths, tmp_path / "out", on_result=seen.append)
    assert results == seen
    assert [result.path for result in results] == paths
    assert [type(result.error) for result in results] == [
        type(None),
        UnclosedQuote,
        NotFound,
        UnsupportedFile,
        UnsupportedFile,
        type(None),
    ]
    assert [result.output is None for result in results] == [False, True, True, True, True, False]
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["good.csv", "last.csv", "open.csv"]
    assert older.read_bytes() == b"older\n"


def test_two_inputs_of_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    first = write(tmp_path / "x", "a,b\n1,2\n")
    second = write(tmp_path / "y", gzip.compress(b"a,b\n3,4\n"), "a.csv.gz")
    done, refused = convert_files([first, second], tmp_path / "out")
    assert done.output is not None
    assert done.output.read_bytes() == b"a,b\n1,2\n"
    assert isinstance(refused.error, SettingsError)
    assert str(first) in str(refused.error)
    assert refused.output is None


def test_an_input_is_never_replaced(tmp_path: Path) -> None:
    path = write(tmp_path, "a;b\n1;2\n")
    (result,) = convert_files([path], tmp_path)
    assert isinstance(result.error, SettingsError)
    assert path.read_bytes() == b"a;b\n1;2\n"
    link = tmp_path / "out"
    link.symlink_to(tmp_path)
    (result,) = convert_files([path], link)
    assert isinstance(result.error, SettingsError)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a\.csv"):
        convert_files([], write(tmp_path, "x") / "out")


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.text(st.sampled_from(list("ab ,;\"'\r\n\ufeff\0é")), max_size=5), min_size=1, max_size=4),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([";", "\t", "|"]),
)
def test_what_was_converted_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, table: list[list[str]], delimiter: str
) -> None:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\r\n").writerows(table)
    assume(any(text.strip(" \t\r\n\ufeff") for row in table for text in row))
    path = tmp_path_factory.getbasetemp() / "in" / "t.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(out.getvalue().encode())
    options = ReadOptions("utf-8", delimiter, '"', "", header=False, preamble=0)
    (result,) = convert_files([path], path.parent / "out", options=options)
    if isinstance(result.error, UnsupportedFile):
        return  # not taken for a table by its content
    assert result.error is None
    assert result.output is not None
    text = result.output.read_bytes().decode()
    assert not text.startswith("\ufeff")
    assert [record.fields for record in read_records(text, Dialect())] == table
