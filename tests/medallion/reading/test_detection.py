import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.errors import UnclosedQuote
from airflow_lake_provider.medallion.dialect import Dialect, Doubt, ReadOptions
from airflow_lake_provider.medallion.reading.detect_header import preamble_length, table_width
from airflow_lake_provider.medallion.reading.detect_values import is_value, kind_of
from airflow_lake_provider.medallion.reading.detection import Detection, detect, spaces_follow_delimiters
from airflow_lake_provider.medallion.reading.records import read_records


def found(text: str, *, complete: bool = True, name: str = "", **options: object) -> Detection:
    return detect(text, complete=complete, options=ReadOptions(**options), name=name)  # type: ignore[arg-type]


def doubts(detection: Detection) -> dict[str, Doubt]:
    return {doubt.code: doubt for doubt in detection.doubts}


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "-1.5",
        "1e3",
        "1,234.5",
        "1.234,50",
        "$12.50",
        "12 €",
        "12%",
        "(5.00)",
        "007",
        "+49",
        "1 234 567",
        ".5",
        "0x1F",
        "2101",
        "1899",
        "2019.0",
        "2021-03-04",
        "4/3/2021",
        "04.03.21",
        "2021-03-04T05:06:07Z",
        "2021-03-04 05:06",
        "12 Jan 2020",
        "January 12, 2020",
        "TRUE",
        "false",
        " 5 ",
        "\u00a05",
    ],
)
def test_values_that_no_column_is_called(text: str) -> None:
    assert is_value(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "id",
        "2019",
        "1900",
        "2100",
        "Q1 2020",
        "2020-01",
        "10-19",
        "20+",
        "5 inch",
        "a1",
        "%",
        "$",
        "n/a",
        "NaN",
        "10:30",
        "yes",
        "1st",
        "may",
        "col_1",
        "1.2.3",
        "x=1",
        "-",
        "Jan-20",
        "99/99/2020",
    ],
)
def test_texts_that_may_be_column_names(text: str) -> None:
    assert not is_value(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("10:30:15.5", "time"),
        ("10:30 am", "time"),
        ("a@b.example", "token"),
        ("https://x.example/a,b", "token"),
        ("10.0.0.1", "token"),
        ("some text", "text"),
        ("x" * 1000, "text"),
    ],
)
def test_kinds(text: str, kind: str) -> None:
    assert kind_of(text) == kind


@pytest.mark.parametrize(
    ("text", "delimiter", "header"),
    [
        ("a,b\n1,2\n", ",", ["a", "b"]),
        ("a;b;c\n1,5;2,5;3,5\n2,5;3,5;4,5\n", ";", ["a", "b", "c"]),
        ("a\tb\nx, y\tz, w\n", "\t", ["a", "b"]),
        ("name|note\nA|b,c\nD|e,f\n", "|", ["name", "note"]),
        ("id,name\n", ",", ["id", "name"]),
        ("id,name", ",", ["id", "name"]),
        ("x\n1\n2\n", None, ["x"]),
        ("value\n1,5\n2,5\n3,5\n", None, ["value"]),
        ("stamp\n2020-01-01 10:00:00\n2020-01-02 10:00:00\n", None, ["stamp"]),
        ("start time\n2020-01-01 10:00:00\n2020-01-02 10:00:00\n", None, ["start time"]),
        ("full name\nAda Lovelace\nAlan Turing\nGrace Hopper\n", None, ["full name"]),
        # A time of day is no reason to say that there is no header.
        ("10:00:00\n10:00:01\n10:00:02\n", None, ["10:00:00"]),
        ("time,value\n10:00:00,1\n10:00:01,2\n", ",", ["time", "value"]),
        ("from: a,to: b\n10:00:00,11:00:00\n10:00:01,12:00:00\n", ",", ["from: a", "to: b"]),
        ("a/b,c/d\n1/2/2020,3/4/2020\n5/6/2020,7/8/2020\n", ",", ["a/b", "c/d"]),
        ("a::b\n1::x:y\n2::z\n", "::", ["a", "b"]),
        ("a\t\tb\n1\t\t2\n", "\t\t", ["a", "b"]),
        ("a\tb\tc\n1\t\t2\n3\t\t4\n", "\t", ["a", "b", "c"]),
        ("a b c\n1 2 3\n4 5 6\n", " ", ["a", "b", "c"]),
        ("a\x1fb\n1\x1f2\n", "\x1f", ["a", "b"]),
        ('"a";"b"\n"x;y";"1"\n', ";", ["a", "b"]),
        ('id,json\n1,"{""a"": 1, ""b"": [1;2]}"\n2,"{""a"": 2; ""b"": [1;2]}"\n', ",", ["id", "json"]),
        ("\n\n\na,b\n1,2\n", ",", ["a", "b"]),
        ("comment\nWell, this is prose.\nIt goes on, and on, and on.\nNo more\n", None, ["comment"]),
    ],
)
def test_delimiter_and_header(text: str, delimiter: str | None, header: list[str]) -> None:
    detection = found(text)
    assert detection.dialect.delimiter == delimiter
    assert detection.header == header
    assert detection.width == len(header)
    assert (detection.dialect.header, detection.dialect.preamble) == (True, 0)


@pytest.mark.parametrize(
    ("text", "delimiter", "width"),
    [
        ("1,Ada,2.5\n2,Alan,3.5\n", ",", 3),
        ("Ada,true\nAlan,false\n", ",", 2),
        ("Ada,2020-01-01\nAlan,2020-01-02\n", ",", 2),
        ("5\n6\n", None, 1),
        ("2020-01-01 10:00\n2020-01-01 11:00\n", None, 1),
        ("1;2\n3;4;5\n6;7;8\n9;10;11\n", ";", 3),
        ("1,2,3\n4,5\n6,7,8,9\n", ",", 3),
        ("  1.5   2.5\n  3.5   4.5\n", None, 1),
    ],
)
def test_no_header(text: str, delimiter: str | None, width: int) -> None:
    detection = found(text)
    assert detection.header is None
    assert not detection.dialect.header
    assert (detection.dialect.delimiter, detection.width) == (delimiter, width)
    assert {"header_missing", "header_uncertain"} & set(doubts(detection))


def test_an_empty_text() -> None:
    for text in ("", "\n\r\n"):
        detection = found(text)
        assert (detection.header, detection.width, detection.dialect.delimiter) == (None, 0, None)


@pytest.mark.parametrize(
    ("records", "length"),
    [
        ([["Report"], ["id", "n"], ["1", "2"], ["3", "4"]], 1),
        ([["Report", "", ""], ["", "", ""], ["id", "n", "v"], ["1", "2", "3"], *[["4", "5", "6"]] * 2], 2),
        # As many as after the header.
        ([["Report"], ["id", "n"], ["1", "2"]], 0),
        # A record that does not match the header.
        ([["Report"], ["id", "n"], ["1", "2"], ["3"], ["4", "5"]], 0),
        # No header-like record: a value, a blank.
        ([["Report"], ["id", "7"], ["1", "2"], ["3", "4"]], 0),
        ([["Report"], ["id", ""], ["1", "2"], ["3", "4"]], 0),
        # Not narrower.
        ([["a", "b"], ["c", "d"], ["1", "2"], ["3", "4"]], 0),
        # Ragged data, and a header that is itself narrow.
        ([["a", "b", "c"], ["1", "2", "3"], ["4", "5"], ["6", "7", "8", "9", "10"]], 0),
        ([["name", "town"], *[["Ada", "London", "UK"]] * 4], 0),
        ([["", "name"], *[["a", "Ada"]] * 4], 0),
        # Two fields are as wide as the table, though the second one is blank: nothing of it may get lost.
        ([["pau", ""], ["null", ""], ["ey", "ej"], *[["ae", "a"]] * 4], 0),
        ([["", ""], ["id", "n"], *[["1", "2"]] * 4], 0),
        # Padded, but with more than a title in it.
        ([["Account", "7/x", ""], ["id", "n", "v"], *[["1", "2", "3"]] * 4], 0),
        # Two names in a title line; what is below the second one differs from it.
        ([["Sales", "2020"], ["id", "name", "price"], ["1", "a", "2"], ["2", "b", "3"]], 1),
        ([["x"]] * 10 + [["id", "n"], *[["1", "2"]] * 11], 10),
        ([["x"]] * 11 + [["id", "n"], *[["1", "2"]] * 12], 0),
        ([], 0),
    ],
)
def test_preamble_length(records: list[list[str]], length: int) -> None:
    assert preamble_length(records) == length


def test_table_width() -> None:
    assert table_width([]) == 0
    assert table_width([["1"], ["1", "2"]]) == 1
    assert table_width([["1"], ["1", "2"], ["1", "2"], ["1", "2"]]) == 2


def test_preamble_is_found_and_told() -> None:
    detection = found("Report of 2026-01-05\n\nid;name;n\n1;a;2\n2;b;3\n")
    assert detection.dialect == Dialect(delimiter=";", preamble=1)
    assert detection.header == ["id", "name", "n"]
    assert doubts(detection)["preamble_found"] == Doubt(
        "preamble_found", "1 record before the header is taken for a preamble and not loaded.", "preamble", 3, 1
    )


def test_a_delimiter_that_is_not_in_the_header_record() -> None:
    detection = found("Report\nid;name;n\n1;a;2\n2;b\n3;c;4\n5;d;6\n")
    assert (detection.dialect.delimiter, detection.header, detection.dialect.preamble) == (None, ["Report"], 0)
    assert doubts(detection)["delimiter_not_in_header"].setting == "preamble"
    detection = found("Report\nid;name;n\n1;a;2\n2;b\n3;c;4\n5;d;6\n", preamble=1)
    assert (detection.dialect.delimiter, detection.header) == (";", ["id", "name", "n"])


def test_records_that_lack_their_last_field_are_no_preamble() -> None:
    detection = found("pau,\nnull,\ney,ej\nae,\u00e6\niy,i\neh,\u025b\nay,aj\n")
    assert (detection.dialect.preamble, detection.header) == (0, ["pau", ""])


_RAGGED = [
    "-1\t10-1\t[Po+6]\tPo/q+6\tpolonium, ion (Po6+)",
    "-1\t11-8\tMnOH+3\tMn.O/q+4;-1\tmanganese(3+), hydroxy- (9CI)\tMnOH(+3)\tMnOH+++",
    "-1\t12-4\tH2O2Th+2\tC/h2*1H2;/q\tthorium(2+), dihydroxy- (9CI)\tThorium(2+), dihydroxy-, ion (8CI)\tTh\tTh 2\tx",
    "-1\t13-7\tC18+4\t[NH-]CC[N-]/c3*7-1-3\tnickel(4+), [N1,N2-bis[2-(amino)ethyl]-1,2-ethanediamine]di-\tx, y, z",
    "-1\t14-9\tAmO2+2\tAm.2O/q+2;;\tamericyl ion(2+) (8CI,9CI)\t1-azanyl\t1-amino\t1,2-diol\tAm\tamericium",
    "-1\t15-2\tC2+2\tC[N+](=O)\t1,2-bis(chloranyl)ethane\tethane, 1,2-dichloro-\t1,2-x\t2,3-y\t4,5-z\tw\tv\tu",
]


@pytest.mark.parametrize("name", ["", "x.tsv", "x.tab", "x.tsv.gz"])
def test_a_tab_in_every_record_beats_what_fits_badly(name: str) -> None:
    # Each record has another width, in tabs and in commas.
    detection = found("\n".join(_RAGGED) + "\n", name=name)
    assert (detection.dialect.delimiter, detection.header, detection.dialect.preamble) == ("\t", None, 0)
    # One column of texts, where only some have tabs.
    texts = [line.replace("\t", " ") if place % 2 else line for place, line in enumerate(_RAGGED)]
    assert found("text\n" + "\n".join(texts) + "\n").dialect.delimiter is None


@pytest.mark.parametrize("delimiter", [";", "|"])
def test_a_semicolon_or_bar_in_every_record(delimiter: str) -> None:
    lines = [f"{place}, a" + f"{delimiter}some, words" * (1 + place % 5) for place in range(1, 20)]
    assert found("\n".join(lines) + "\n").dialect.delimiter == delimiter


@pytest.mark.parametrize(
    "lines",
    [
        ["a,b", '1,"x\ty"', '2,"z\tw"', '3,"u\tv\tw"'],
        ['"a\tz",b', '"x\ty, z",1', '"z\tw",2', '"u\tv\tw",3,4', '"s\tt",5,6,7'],
        ["a,b\t", "x,1\t", "z,2\t", "u\t", "w,3\t"],
    ],
)
def test_tabs_within_and_behind_fields_are_no_delimiters(lines: list[str]) -> None:
    assert found("\n".join(lines) + "\n").dialect.delimiter == ","


def test_a_late_record_that_does_not_match_undoes_the_preamble() -> None:
    text = "Report\nid;name;n\n" + "1;some name;2\n" * 5_000
    assert found(text).dialect.preamble == 1
    detection = found(text + "1;2\n")
    assert (detection.dialect.preamble, detection.dialect.delimiter) == (0, None)
    assert "delimiter_not_in_header" in doubts(detection)


@pytest.mark.parametrize("line", ["sep=;", "SEP=;", '"sep=;"'])
def test_a_line_that_names_the_delimiter(line: str) -> None:
    detection = found(f"{line}\r\na;b,c\r\nx;1,2\r\n")
    assert detection.dialect == Dialect(delimiter=";", line_end="\r\n", preamble=1)
    assert detection.header == ["a", "b,c"]
    assert doubts(detection)["preamble_found"].count == 1


@pytest.mark.parametrize(
    ("text", "quote", "escape"),
    [
        ("a,b\n1,2\n", '"', None),
        ('a,b\n"x,y",2\n"z ""w""",3\n', '"', None),
        ('a,b\n"say \\"hi\\", you",2\n"x",3\n', '"', "\\"),
        ('a,b\n"C:\\dir\\",2\n"D:\\",3\n', '"', None),
        ('a,b\n"say \x00"hi\x00", you",2\n"x",3\n', '"', "\x00"),
        ("a,b\n'x,y',2\n'z',3\n", "'", None),
        ("a,b\n'x y',2\n'z',3\n'it''s',4\n", "'", None),
        ("a,b\n'tis,2\ndogs',3\nit's,4\n", '"', None),
        ("a,b\n`x,y`,2\n`z`,3\n", "`", None),
        ("a,b\nx\\,y,2\nz,3\nw\\,v,4\n", '"', "\\"),
        ('a\tb\n"x\t2\ny\t3\n', None, None),
        ('a\tb\n"x\ty"\t2\ny\t3\n', '"', None),
        # A quote that is never closed is for the reading of the whole text to refuse.
        ('id,note\n2,fine\n3,"never closed\n4,lost?\n', '"', None),
    ],
)
def test_quote_and_escape(text: str, quote: str | None, escape: str | None) -> None:
    dialect = found(text).dialect
    assert (dialect.quote, dialect.escape) == (quote, escape)
    assert dialect.delimiter == ("\t" if "\t" in text else ",")


def test_options_decide() -> None:
    text = "a,b;c\n1,2;3\n4,5;6\n"
    assert found(text, delimiter=";").header == ["a,b", "c"]
    assert found(text, delimiter="").header == ["a,b;c"]
    assert found(text, delimiter="").dialect.delimiter is None
    assert found(text, header=False).width == 2
    assert found(text, header=False).header is None
    assert found("1,2\n3,4\n", header=True).header == ["1", "2"]
    assert found("a,b\nc,d\n1,2\n", preamble=1).header == ["c", "d"]
    assert found("a\n1,2\n", preamble=7).header is None
    assert found('a,b\n"x,y",2\n', quote="").dialect.quote is None
    assert found("a,b\n|x,y|,2\n", quote="|").dialect.quote == "|"
    assert found("a,b\n1,2\n", escape="\\").dialect.escape == "\\"
    assert found('a,b\n"x \\"y\\", z",2\n', escape="").dialect.escape is None
    # What was decided is no doubt.
    assert not {"header_missing", "preamble_found", "delimiter_uncertain"} & (
        set(doubts(found("1,2\n3,4\n", header=False)))
        | set(doubts(found("a,b\nc,d\n1,2\n", preamble=1, delimiter=",")))
    )


def test_the_name_tips_the_scales() -> None:
    text = "a|b;c\n1|2;3\n"
    assert found(text).dialect.delimiter == ";"
    assert found(text, name="x.PSV").dialect.delimiter == "|"
    assert found("a,b,c\n1,2,3\n", name="x.tsv").dialect.delimiter == ","


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a, b, c\n1, 2, 3\n", True),
        ('a, b, c\n"x,y", "z,w", 3\n', True),
        ("a, b, c,\n1, 2, 3,\n", True),
        ("a,b, c\n1, 2, 3\n", False),
        ("a, b\n1, 2\n", False),
        ('a, b, c\n1,"x, y", 3\n', False),
        ("a,b,c\n1,2,3\n", False),
    ],
)
def test_skip_initial_space(text: str, expected: bool) -> None:
    assert spaces_follow_delimiters(text, Dialect()) is expected
    detection = found(text, delimiter=",")
    assert detection.dialect.skip_initial_space is expected
    assert not expected or [name[:1] for name in detection.header or [] if name] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "line_end"),
    [
        ("a,b\n1,2\n", "\n"),
        ("a,b\r\n1,2\r\n", "\r\n"),
        ("a,b\r1,2\r", "\r"),
        ("a,b\r\n1,2\n", "mixed"),
        ('a,b\r\n"x\ny",2\r\n', "\r\n"),
        ('a,b\n"x\r\ny",2\n', "\n"),
    ],
)
def test_line_end(text: str, line_end: str) -> None:
    detection = found(text)
    assert detection.dialect.line_end == line_end
    assert ("line_ends_mixed" in doubts(detection)) == (line_end == "mixed")


def test_doubts_about_the_header() -> None:
    told = doubts(found(",name,name,Name\n1,a,b,c\n"))
    assert told["header_blank"].count == 1
    assert told["header_repeated"].count == 2
    assert doubts(found("a,b\nx,y\nz,w\n"))["header_uncertain"].setting == "header"
    assert "header_uncertain" not in doubts(found("a,b\n1,y\n2,w\n"))
    assert doubts(found("1,2\n3,4\n"))["header_missing"].setting == "header"
    assert "header_uncertain" in doubts(found("place,2020-01-01,2020-01-02\nx,1,2\ny,3,4\nz,5,6\n"))


def test_doubts_about_records() -> None:
    told = doubts(found('a,b,c\n1,2,3\n4,5\n\n6,7,8,9,10\n"x"y,5,6\n'))
    assert (told["records_short"].count, told["records_short"].line) == (1, 3)
    assert (told["records_long"].count, told["records_long"].line) == (1, 5)
    assert (told["quoting_malformed"].count, told["quoting_malformed"].line) == (1, 6)
    assert doubts(found("a,b\n1,2,3\n4,5,6\n"))["header_short"].count == 2
    assert doubts(found("a,b,c\n1,2\n4,5\n"))["header_long"].count == 2
    assert doubts(found("Account:,7/x,\na,b,c,d,\n1,2,3,4,\n5,6,7,8,\n"))["header_narrow"].setting == "preamble"


def test_doubts_hold_no_text_of_a_cell() -> None:
    secret = "Zanzibar"
    text = f'{secret}\n{secret};{secret};{secret}\n{secret};"{secret}"x;{secret}\n{secret};{secret}\n'
    for options in ({}, {"delimiter": ";"}, {"header": False}):
        for doubt in found(text, **options).doubts:
            assert secret not in doubt.message


def test_a_first_record_that_ends_after_the_sample() -> None:
    text = ",".join(f"name {i}" for i in range(3000))
    detection = found(text, complete=False)
    assert detection.dialect.delimiter == ","


def test_a_cut_off_record_is_left_out_of_account() -> None:
    detection = found("a,b,c\n1,2,3\n4,5,6\n7,", complete=False)
    assert not detection.doubts


def test_a_huge_quoted_field_at_the_beginning() -> None:
    text = 'Description,status\r\n"' + "Some words, more words: so it goes.\r\n" * 2_000 + '",x\r\n"y",z\r\n'
    detection = found(text)
    assert (detection.dialect.delimiter, detection.dialect.quote) == (",", '"')
    assert detection.header == ["Description", "status"]


@pytest.mark.parametrize("count", [100, 1_000, 10_000])
@pytest.mark.parametrize("line", ["alpha bravo\n", "alpha, bravo; charlie\n", "a;b\n", "x\ty\n", 'say ""hi""\r\n'])
@pytest.mark.parametrize(
    ("before", "after", "header"),
    [
        ('id,text\n1,"', '"\n2,"b c"\n3,x\n', ["id", "text"]),
        ('text,id\n"', '",1\n"b c",2\n"x",3\n', ["text", "id"]),
        ('id,text\n1,x\n2,"', '"\n3,"b c"\n4,x\n', ["id", "text"]),
    ],
)
def test_a_quoted_field_of_many_lines(before: str, after: str, header: list[str], line: str, count: int) -> None:
    detection = found(before + line * count + after)
    assert (detection.dialect.delimiter, detection.dialect.quote, detection.dialect.preamble) == (",", '"', 0)
    assert detection.header == header


def test_a_quoted_field_of_many_lines_in_the_first_record() -> None:
    detection = found('"' + "a;b\n" * 100 + '",c\n"b c",2\n"x",3\n')
    assert (detection.dialect.delimiter, detection.width) == (",", 2)


def test_a_quoted_field_that_ends_after_the_sample() -> None:
    text = 'id,text\n1,"' + "alpha bravo, charlie; delta\n" * 12_000
    detection = found(text, complete=False)
    assert (detection.dialect.delimiter, detection.dialect.preamble) == (",", 0)
    assert detection.header == ["id", "text"]


@pytest.mark.parametrize("header", [[], ["full name"]])
def test_two_words_are_no_two_columns(header: list[str]) -> None:
    words = ["alpha", "bravo", "charlie", "delta", "echo"]
    pairs = [f"{first} {second}" for first in words for second in words]
    for lines in (pairs, pairs[:2], ["alpha bravo"] * 40, [f'"{pair}"' for pair in pairs], [f"{p}'s x" for p in pairs]):
        assert found("\n".join([*header, *lines]) + "\n").dialect.delimiter is None
    # Numbers under the same place, and quotes around just what has spaces, show a table.
    assert found("\n".join(f"{word} {n}" for n, word in enumerate(words)) + "\n").dialect.delimiter == " "
    assert found("\n".join(f'"{pair}" x' for pair in pairs) + "\n").dialect.delimiter == " "


def test_wide_tables() -> None:
    width = 5_000
    names = [f"column name {i}" for i in range(width)]
    text = ";".join(names) + "\n" + (";".join(str(i * 1.5) for i in range(width)) + "\n") * 20
    started = time.perf_counter()
    detection = found(text)
    assert time.perf_counter() - started < 5
    assert (detection.header, detection.dialect.delimiter) == (names, ";")


def test_a_large_sample_takes_little_time() -> None:
    text = "id,name,when,amount,note\n" + '17,"Some name",2020-01-02 03:04:05,12.50,"a, b; c"\n' * 20_000
    found(text[:10_000], complete=False)
    started = time.perf_counter()
    assert found(text, complete=False).width == 5
    assert time.perf_counter() - started < 3


@given(
    st.text(st.sampled_from(list("ab1,;\t| \"'\\\n\r:")), max_size=80),
    st.booleans(),
    st.sampled_from([{}, {"delimiter": ","}, {"header": True}, {"header": False}, {"preamble": 1}, {"quote": ""}]),
)
def test_any_text_gets_an_answer_that_fits_its_records(text: str, complete: bool, options: dict[str, object]) -> None:
    detection = found(text, complete=complete, **options)  # type: ignore[arg-type]
    dialect = detection.dialect
    assert (detection.header is not None) <= dialect.header
    try:
        records = [record.fields for record in read_records(text, dialect)]
    except UnclosedQuote:
        return
    if detection.header is not None and not any(record.repaired for record in read_records(text, dialect)):
        assert records[dialect.preamble] == detection.header
        assert dialect.delimiter is None or len(detection.header) > 1 or "delimiter" in options
