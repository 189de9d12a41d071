from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import random
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.errors import NotFound, UnsupportedFile
from airflow_lake_provider.medallion.content import HEAD, ContentKind, check_content

CASES = Path(__file__).resolve().parents[1] / "cases"
TABLE = "id,name\n1,Zoë\n2,Ann\n"

Check = Callable[..., ContentKind]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def check(data: bytes | str, name: str = "a.csv") -> ContentKind:
        path = tmp_path / "file"
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return check_content(path, name)

    return check


def refused(check: Check, data: bytes | str, name: str = "a.csv") -> str:
    with pytest.raises(UnsupportedFile) as caught:
        check(data, name)
    message = str(caught.value)
    assert message.startswith(f"{name} ")
    assert "delimited text was expected" in message
    return message


def archive(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as file:
            file.writestr("a.csv", TABLE)
    elif kind == "xlsx":
        with zipfile.ZipFile(out, "w") as file:
            file.writestr("[Content_Types].xml", "<Types/>")
            file.writestr("xl/workbook.xml", "<workbook/>")
    elif kind == "tar":
        with tarfile.open(fileobj=out, mode="w") as tar:
            entry = tarfile.TarInfo("a.csv")
            entry.size = len(TABLE.encode())
            tar.addfile(entry, io.BytesIO(TABLE.encode()))
    return out.getvalue()


def columnar(kind: str) -> bytes:
    table = pa.table({"id": list(range(1000)), "name": ["x"] * 1000})
    out = io.BytesIO()
    if kind == "parquet":
        pyarrow.parquet.write_table(table, out)
    elif kind == "orc":
        pyarrow.orc.write_table(table, out)
    else:
        pyarrow.feather.write_feather(table, out)
    return out.getvalue()


def sqlite(folder: Path) -> bytes:
    connection = sqlite3.connect(folder / "db")
    connection.execute("CREATE TABLE t (a)")
    connection.commit()
    connection.close()
    return (folder / "db").read_bytes()


ALIENS: dict[str, tuple[bytes | str, str]] = {
    "zip": (archive("zip"), "a ZIP archive"),
    "xlsx": (archive("xlsx"), "an Excel workbook"),
    "tar": (archive("tar"), "a tar archive"),
    "parquet": (columnar("parquet"), "a Parquet file"),
    "orc": (columnar("orc"), "an ORC file"),
    "arrow": (columnar("feather"), "an Arrow file"),
    "bz2": (bz2.compress(TABLE.encode() * 100), "a bzip2 archive"),
    "xz": (lzma.compress(TABLE.encode()), "an xz archive"),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), "old Office"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", "a PDF document"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG image"),
    "jpeg": (b"\xff\xd8\xff\xe0\0\x10JFIF\0", "a JPEG image"),
    "gif": (b"GIF89a\x01\0\x01\0\x80\0\0\xff\xff\xff", "a GIF image"),
    "avro": (b'Obj\x01\x04\x16avro.schema\xbe\x01{"type":"record"}', "an Avro file"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\x04" + bytes(30), "a 7z archive"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x58\x41\0\0id,name", "a Zstandard archive"),
    "elf": (Path("/proc/self/exe").read_bytes()[:5000] if Path("/proc/self/exe").exists() else b"\x7fELF", "a program"),
    "exe": (b"MZ\x90\0\x03\0\0\0\x04\0\0\0\xff\xff\0\0", "a program"),
    "noise": (random.Random(7).randbytes(5000), "binary data"),
    "little noise": (random.Random(8).randbytes(60), "binary data"),
    "zeros": (bytes(4096), "binary data"),
    "html": ("<!DOCTYPE html>\n<html><body>1,2\n3,4</body></html>", "HTML or XML"),
    "html of a spreadsheet": ('\n <HTML xmlns:o="urn:x">\n<table><tr><td>1</td></tr></table>', "HTML or XML"),
    "xml": ('\ufeff<?xml version="1.0"?>\n<rows><row a="1"/></rows>', "HTML or XML"),
    "xml without a declaration": ("<rows>\n<row>1</row>\n<row>2</row>\n</rows>\n", "HTML or XML"),
    "json": ('{"a":1}\n', "a JSON document"),
    "json with a mark": ('\ufeff[{"a": 1, "b": 2}]', "a JSON document"),
    "pretty json": (json.dumps([{"id": n, "name": "x"} for n in range(3)], indent=2), "a JSON document"),
    "long json": (json.dumps([{"id": n, "name": "x"} for n in range(9000)]), "a JSON document"),
    "long pretty json": (json.dumps([{"id": n, "name": "x"} for n in range(9000)], indent=1), "a JSON document"),
    "json with one long text": (json.dumps({"text": "x" * HEAD * 2}), "a JSON document"),
    "deep json": ("[" * 5000 + "]" * 5000, "a JSON document"),
    "very deep json": ("[" * HEAD * 2, "a JSON document"),
    "json lines": ('{"a":1,"b":2}\n{"a":3,"b":4}\n', "JSON Lines"),
    "json lines with blanks": ('{"a":1}\r\n\r\n[1, 2]\r\n', "JSON Lines"),
    "long json lines": ('{"a":1,"b":"x,y"}\n' * 9000, "JSON Lines"),
    "json in utf-16": ('{"a":1}\n'.encode("utf-16"), "a JSON document"),
    "rtf": (r"{\rtf1\ansi a,b}", "an RTF document"),
    "git lfs": ("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS"),
}


@pytest.mark.parametrize("alien", ALIENS)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a", "a.json"])
def test_other_types_are_refused_whatever_they_are_called(check: Check, alien: str, name: str) -> None:
    data, kind = ALIENS[alien]
    message = refused(check, data, name)
    assert kind in message, message
    assert len(message) < 250


@pytest.mark.parametrize("alien", ALIENS)
def test_other_types_inside_gzip_are_refused(check: Check, alien: str) -> None:
    data, kind = ALIENS[alien]
    packed = gzip.compress(data.encode() if isinstance(data, str) else data)
    message = refused(check, packed, "a.csv.gz")
    assert message.startswith("a.csv.gz holds ")
    assert kind in message


def test_a_database(check: Check, tmp_path: Path) -> None:
    assert "an SQLite database" in refused(check, sqlite(tmp_path))


def test_gzip_in_gzip(check: Check) -> None:
    assert "inside another one" in refused(check, gzip.compress(gzip.compress(TABLE.encode())))


@pytest.mark.parametrize("data", [b"", gzip.compress(b""), gzip.compress(b"") * 2])
def test_no_bytes(check: Check, data: bytes) -> None:
    assert "nothing at all" in refused(check, data)


@pytest.mark.parametrize("data", ["\n", " \r\n\t\r\n", "\ufeff", "\ufeff\n"])
def test_nothing_but_blank_lines(check: Check, data: str) -> None:
    assert "nothing but blank lines" in refused(check, data)


@pytest.mark.parametrize(
    "name",
    [
        "a.csv",
        "a.CSV",
        "a.tsv",
        "a.tab",
        "a.psv",
        "a.txt",
        "a.dat",
        "a",
        "orders 2026.01",
        "a.export",
        ".csv",
        "a.csv.gz",
    ],
)
def test_text_is_accepted_under_its_usual_names_and_unknown_ones(check: Check, name: str) -> None:
    assert check(TABLE, name) is ContentKind.TEXT
    assert check(gzip.compress(TABLE.encode()), name) is ContentKind.GZIP
    assert check("just one column\nof words\n", name) is ContentKind.TEXT


@pytest.mark.parametrize("name", ["a.json", "a.xls", "a.xlsx", "a.html", "a.parquet", "a.zip", "a.json.gz"])
def test_text_under_another_types_name_needs_columns(check: Check, name: str) -> None:
    assert check("id\tname\n1\tAnn\n2\tBob\n", name) is ContentKind.TEXT
    assert check('"a;b",c\n"1;2",3\n', name) is ContentKind.TEXT
    for ambiguous in ("hello\nworld\n", "a,b\n", "one, two\nand three\nor, well, four\n"):
        assert "no columns that show it to be a table" in refused(check, ambiguous, name)


@pytest.mark.parametrize(
    "table",
    [
        "<DATE>,<TIME>,<OPEN>\n20260101,1000,1.5\n",
        "<b>new</b>;1\n<b>old</b>;2\n",
        "<5,5-10,>10\n1,2,3\n",
        "[id],[name]\n1,Ann\n",
        "[1],[2]\n[3],[4]\n",
        '{"a":1},{"b":2}\nx,y\n',
        '{"a":1}\nnot json\n',
        '"{""a"":1}"\n"{""a"":2}"\n',
        'payload\n{"a":1}\n{"a":2}\n',
        "{{template}},b\n1,2\n",
        "PAR1,PAR2\n1,2\n",
        "ORC,ELF\n1,2\n",
        "MZ;BM;ID3\n1;2;3\n",
        "GIF89a\nx\n",
        "PK,name\n1,Ann\n",
        "%PDF,name\n1,2\n",
        "a\x01b\n1\x012\n",
        "a\x1fb\x1e1\x1f2\x1e",
        "a,b\r\n1,2\r\n\x1a",
        "a,b\n1,\0\n",
        "id,name\n" + "1,abc\0def\n" * 100,
    ],
)
def test_tables_that_look_like_something_else_are_tables(check: Check, table: str) -> None:
    assert check(table) is ContentKind.TEXT


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "cp1252", "cp437"],
)
@pytest.mark.parametrize("rows", [1, 20_000])
def test_text_in_any_encoding_is_text(check: Check, encoding: str, rows: int) -> None:
    text = "id;größe\n" + "1;straße\n" * rows
    assert check(text.encode(encoding)) is ContentKind.TEXT


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "имя;город\nАнна;Москва\n"),
        ("cp932", "名前,住所\n山田,東京\n"),
        ("gb18030", "名称,地址\n张三,北京\n"),
        ("utf-16-le", "名称,地址\n张三,北京\n"),
        ("utf-16-be", "имя;город\nАнна;Москва\n"),
        ("cp037", "id,name\n1,Ann\n"),
    ],
)
def test_text_in_any_script_is_text(check: Check, encoding: str, text: str) -> None:
    assert check((text * 200).encode(encoding)) is ContentKind.TEXT


def test_a_character_that_is_cut_at_the_end_of_what_is_read(check: Check) -> None:
    for shift in range(4):
        assert check("a" * shift + "€" * HEAD) is ContentKind.TEXT


def test_a_damaged_gzip_file_is_left_to_the_reader(check: Check) -> None:
    packed = gzip.compress(TABLE.encode() * 5)
    assert check(packed[:12]) is ContentKind.GZIP
    assert check(packed[:-4]) is ContentKind.GZIP
    assert check(packed[:10] + b"\xff" * 20) is ContentKind.GZIP


def test_only_the_beginning_is_unpacked(check: Check) -> None:
    assert check(gzip.compress(TABLE.encode() * 5_000_000, 1)[:200_000]) is ContentKind.GZIP


def test_what_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.csv", tmp_path):
        with pytest.raises(NotFound):
            check_content(path)


def test_the_name_is_the_files_own_unless_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("hello\nworld\n")
    with pytest.raises(UnsupportedFile):
        check_content(tmp_path / "x.json")
    assert check_content(tmp_path / "x.json", "x.txt") is ContentKind.TEXT


def test_the_cases_agree() -> None:
    for case in sorted(CASES.glob("*/case.json")):
        for step in json.loads(case.read_text("utf-8"))["steps"]:
            if "upload" not in step:
                continue
            path = case.parent / step["upload"]
            if step["status"] == "quarantined":
                with pytest.raises(UnsupportedFile):
                    check_content(path)
            else:
                assert check_content(path) is ContentKind.TEXT, path


@given(
    st.lists(st.lists(st.text(st.characters(codec="utf-8", categories=["L", "M", "N", "P", "S", "Zs"]))), min_size=1)
)
def test_tables_of_ordinary_text_are_never_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    text = "id,name\n" + "".join(",".join('"' + field.replace('"', '""') + '"' for field in row) + "\n" for row in rows)
    path = tmp_path_factory.getbasetemp() / "table.csv"
    path.write_text(text, "utf-8", newline="")
    assert check_content(path) is ContentKind.TEXT


@given(st.binary(max_size=300))
def test_any_bytes_are_answered(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.csv"
    path.write_bytes(data)
    with contextlib.suppress(UnsupportedFile):
        assert isinstance(check_content(path), ContentKind)
