"""Deciding the encoding of a file from all of its bytes."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from airflow_lake_provider.errors import SettingsError, UndecodableFile, UnsupportedFile
from airflow_lake_provider.medallion.reading.encoding import Encoding, codec_name, decide_encoding
from airflow_lake_provider.medallion.reading.source import Source
from airflow_lake_provider.medallion.reading.stream import TextStream

LATIN = "id,city,note\n1,Köln,größer als 5 €\n2,Zürich,naïve\n"


def decide(folder: Path, data: bytes, wanted: str | None = None) -> Encoding:
    path = folder / "a.csv"
    path.write_bytes(data)
    with Source(path) as source:
        return decide_encoding(source, wanted)


def text_of(folder: Path, data: bytes, wanted: str | None = None, size: int = 5) -> str:
    path = folder / "a.csv"
    path.write_bytes(data)
    with Source(path) as source:
        stream = TextStream(source, decide_encoding(source, wanted))
        block, final = stream.block(b"", size)
        while not final:
            block, final = stream.block(block, size)
        return block.decode()


@pytest.mark.parametrize(
    ("mark", "codec"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
@pytest.mark.parametrize("marked", [True, False])
def test_unicode_with_and_without_a_mark(tmp_path: Path, mark: bytes, codec: str, marked: bool) -> None:
    data = (mark if marked else b"") + LATIN.encode(codec)
    found = decide(tmp_path, data)
    assert (found.codec, found.mark) == (codec, len(mark) if marked else 0)
    assert bool(found.doubts) == (not marked and codec != "utf-8")
    assert text_of(tmp_path, data) == LATIN


def test_utf16_without_a_mark_in_another_script(tmp_path: Path) -> None:
    text = "番号,名前,住所\n" + "".join(f"{i},田中太郎さん,東京都千代田区\n" for i in range(50))
    assert decide(tmp_path, text.encode("utf-16-le")).codec == "utf-16-le"
    assert decide(tmp_path, text.encode("utf-16-be")).codec == "utf-16-be"


def test_utf16_that_begins_with_a_nul_is_no_utf32(tmp_path: Path) -> None:
    data = codecs.BOM_UTF16_LE + "\0,abc\n".encode("utf-16-le")
    assert decide(tmp_path, data).codec == "utf-16-le"


@pytest.mark.parametrize("text", ["a,b\n\0,x\n", "a\0b,c\n1,2\n", "\0", "x,\0\0\0\0\n", "id\n" + "a\0\0b\n" * 20])
def test_nuls_in_utf8_are_ordinary(tmp_path: Path, text: str) -> None:
    assert decide(tmp_path, text.encode()).codec == "utf-8"
    assert text_of(tmp_path, text.encode()) == text


def test_no_bytes_are_no_table(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFile, match=r"a\.csv is empty"):
        decide(tmp_path, b"")


@pytest.mark.parametrize("cut", range(1, 4))
def test_characters_across_chunks_are_valid(tmp_path: Path, cut: int) -> None:
    data = b"x" * ((4 << 20) - cut) + "😀,Köln\n".encode()
    assert decide(tmp_path, data) == Encoding("utf-8")


def test_a_late_legacy_byte_decides(tmp_path: Path) -> None:
    text = "id,city\n" + "1,Berlin\n" * 600_000 + "2,Köln\n"
    found = decide(tmp_path, text.encode("cp1252"))
    assert found.codec == "cp1252"
    (doubt,) = found.doubts
    assert (doubt.code, doubt.setting, doubt.line) == ("encoding_guessed", "encoding", 600_002)


@pytest.mark.parametrize(
    ("text", "codec", "found"),
    [
        (LATIN, "cp1252", "cp1252"),
        ("name\nZoë\n", "iso-8859-1", "cp1252"),
        ("it’s “fine”, she said – twice\n", "cp1252", "cp1252"),
        ("t\n10 µm ± 3 °C\n", "cp1252", "cp1252"),
        ("Łódź;Kraków;święto;żółw;Gdańsk;Poznań;część\n" * 8, "cp1250", "cp1250"),
        ("Łódź;Kraków;święto;żółw;Gdańsk;Poznań;część\n" * 8, "iso-8859-2", "iso8859-2"),
        ("Москва;договор;количество;Иванов\n" * 3, "cp1251", "cp1251"),
        ("Москва;договор;количество;Иванов\n" * 3, "koi8-r", "koi8-r"),
        ("Αθήνα;Θεσσαλονίκη;ποσότητα\n" * 5, "iso-8859-7", "iso8859-7"),
        ("München;Straße;Größe;fünf;Müller;Äpfel\n" * 10, "cp850", "cp850"),
        ("Café crème;Hôtel;Élysée;Besançon;reçu;première;août;Noël;garçon;déjà vu\n" * 10, "mac_roman", "mac-roman"),
        ("東京都;株式会社;カタカナ;ひらがな;田中太郎\n" * 3, "shift_jis", "cp932"),
        ("北京市;有限公司;订单编号;数量;价格\n" * 3, "gbk", "gb18030"),
        ("臺北市;有限公司;訂單編號;數量;價格\n" * 3, "big5", "big5hkscs"),
        ("서울특별시;주식회사;주문번호;한국어\n" * 3, "euc-kr", "cp949"),
    ],
)
def test_legacy_encodings_are_guessed_and_doubted(tmp_path: Path, text: str, codec: str, found: str) -> None:
    data = text.encode(codec)
    decided = decide(tmp_path, data)
    # DOS code pages share the letters of a language; what counts is the text.
    assert decided.codec == found or text_of(tmp_path, data) == text
    assert text_of(tmp_path, data) == text
    assert [doubt.setting for doubt in decided.doubts] == ["encoding"]


def test_bytes_that_cp1252_lacks_are_read_as_something_else(tmp_path: Path) -> None:
    data = "a;b\n1;dür\n2;schön\n".encode("cp437")
    assert b"\x81" in data
    assert decide(tmp_path, data).codec != "cp1252"
    assert text_of(tmp_path, data).endswith("2;schön\n")


def test_utf8_but_for_a_few_bytes_is_refused_with_the_line(tmp_path: Path) -> None:
    lines = ["id,city"] + [f"{i},Zürich" for i in range(100)]
    data = "\r\n".join(lines).encode() + b"\r\n7,Z\xfcrich\r\n8,x\r\n"
    with pytest.raises(UndecodableFile, match=r"UTF-8 but for 1 byte, .* in line 102.*set its enc") as e:
        decide(tmp_path, data)
    assert e.value.line == 102


@pytest.mark.parametrize("tail", [b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98"])
def test_a_character_cut_at_the_end_is_noticed(tmp_path: Path, tail: bytes) -> None:
    with pytest.raises(UndecodableFile, match="line 31"):
        decide(tmp_path, "Köln,Zürich\n".encode() * 30 + tail)


def test_a_mark_makes_every_other_byte_an_error(tmp_path: Path) -> None:
    with pytest.raises(UndecodableFile, match="line 2"):
        decide(tmp_path, codecs.BOM_UTF8 + b"a,b\n1,Z\xfcrich\n")


def test_a_set_encoding_is_taken(tmp_path: Path) -> None:
    data = "Łódź\n".encode("cp1250")
    assert decide(tmp_path, data, "CP1250").codec == "cp1250"
    assert decide(tmp_path, data, "windows-1250").doubts == ()
    assert text_of(tmp_path, data, "cp1250") == "Łódź\n"
    assert decide(tmp_path, codecs.BOM_UTF8 + b"a\n", "utf8") == Encoding("utf-8", 3)
    assert decide(tmp_path, codecs.BOM_UTF16_BE + "ab\n".encode("utf-16-be"), "utf-16") == Encoding("utf-16-be", 2)
    assert decide(tmp_path, "ab\n".encode("utf-16-be"), "utf-16") == Encoding("utf-16-be")
    assert text_of(tmp_path, "äb\n".encode("utf-32-le"), "utf-32") == "äb\n"


def test_a_mark_against_the_set_encoding_is_doubted(tmp_path: Path) -> None:
    found = decide(tmp_path, codecs.BOM_UTF8 + b"a\n", "cp1252")
    assert (found.codec, found.mark, found.doubts[0].code) == ("cp1252", 0, "encoding_mark_ignored")


@pytest.mark.parametrize(
    ("data", "wanted", "line"),
    [
        (b"a\nb\nK\xf6ln\n", "utf-8", 3),
        (b"a\r\nK\xf6ln\r\n", "ascii", 2),
        (b"a\rb\rc\r\n\x81x\n", "cp1252", 4),
        ("a\nb\n".encode("utf-16-le") + b"\x00\xd8x\x00", "utf-16-le", 3),
        (codecs.BOM_UTF16_LE + "a\nb\nc".encode("utf-16-le") + b"x", None, 3),
        (codecs.BOM_UTF32_LE + "a\nb\n".encode("utf-32-le") + b"\x00\xd8\x00\x00", "utf-32", 3),
        ("あ\nい\n".encode("shift_jis") + b"\x81", "shift_jis", 3),
    ],
)
def test_what_does_not_decode_is_refused_with_the_line(
    tmp_path: Path, data: bytes, wanted: str | None, line: int
) -> None:
    with pytest.raises(UndecodableFile, match=f"line {line}") as error:
        text_of(tmp_path, data, wanted)
    assert error.value.line == line


@pytest.mark.parametrize("name", ["", " ", "latin-99", "base64", "rot13", "idna", "undefined", "a\0b"])
def test_unknown_encodings_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="is not known"):
        codec_name(name)


def test_ascii_shortcut_is_for_codecs_that_keep_ascii(tmp_path: Path) -> None:
    assert text_of(tmp_path, b"a\\b,+AOQ-\n", "utf-7") == "a\\b,ä\n"
    assert text_of(tmp_path, b"a\\b\n", "shift_jisx0213") == "a¥b\n"
    assert text_of(tmp_path, "a,b\n1,2\n".encode("cp500"), "cp500") == "a,b\n1,2\n"
