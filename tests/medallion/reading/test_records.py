import re
import time
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_lake_provider.errors import UnclosedQuote
from airflow_lake_provider.medallion.dialect import Dialect
from airflow_lake_provider.medallion.reading.records import Record, read_records


def fields(text: str, dialect: Dialect | None = None, width: int | None = None) -> list[list[str]]:
    return [record.fields for record in read_records(text, dialect or Dialect(), width=width)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\n\r\n\r", []),
        ("a", [["a"]]),
        ("a,b\n", [["a", "b"]]),
        ("a\nb\r\nc\rd", [["a"], ["b"], ["c"], ["d"]]),
        ("a\n\nb\r\n\r\nc\r\rd\r", [["a"], ["b"], ["c"], ["d"]]),
        ('""\n', [[""]]),
        ('a\n""', [["a"], [""]]),
        (",\n", [["", ""]]),
        ("  \n\t\n", [["  "], ["\t"]]),
        (" a , b \n", [[" a ", " b "]]),
        ('"a\nb","c\r\nd"\r\n', [["a\nb", "c\r\nd"]]),
        ('"say ""hi""","",""""\n', [['say "hi"', "", '"']]),
        (' "a" ,  "b"  \n', [["a", "b"]]),
        ('\t"a"\n', [['\t"a"']]),
        ('5" disk,it"s\n', [['5" disk', 'it"s']]),
        ('"a",b,"c"', [["a", "b", "c"]]),
        ('"a",', [["a", ""]]),
        ("a\x00b,\x00", [["a\x00b", "\x00"]]),
        (',"a"', [["", "a"]]),
    ],
)
def test_well_formed_text(text: str, expected: list[list[str]]) -> None:
    records = list(read_records(text, Dialect()))
    assert [record.fields for record in records] == expected
    assert not any(record.repaired for record in records)


@pytest.mark.parametrize(
    ("dialect", "text", "expected"),
    [
        (Dialect(delimiter="::"), 'a::b:c::"d::e"::\n', [["a", "b:c", "d::e", ""]]),
        (Dialect(delimiter="\t\t"), "a\t\tb\tc\t\t\td", [["a", "b\tc", "\td"]]),
        (Dialect(delimiter=", "), 'a, "b, c" ,  d,e', [["a", "b, c", " d,e"]]),
        (Dialect(delimiter=", "), 'a,  "b" , "c"', [["a", "b", "c"]]),
        (Dialect(delimiter=" | "), 'a | "b | c" | d', [["a", "b | c", "d"]]),
        (Dialect(delimiter=" "), 'a "b c" d\n "x" y', [["a", "b c", "d"], ["", "x", "y"]]),
        (Dialect(delimiter="  "), 'a  "b  c"  d e', [["a", "b  c", "d e"]]),
        (Dialect(delimiter=None), 'a,b\n "x\ny" \nsay "z"', [["a,b"], ["x\ny"], ['say "z"']]),
        (Dialect(delimiter=None, quote=None), '"x\ny"', [['"x'], ['y"']]),
        (Dialect(quote=None), '"a,b"\n', [['"a', 'b"']]),
        (Dialect(quote="'"), "'it''s','a,b'\n", [["it's", "a,b"]]),
        (Dialect(escape="\\"), '"a\\"b","c\\\\","d\\,e","\\n","x\\\ny"\n', [['a"b', "c\\", "d,e", "\\n", "x\ny"]]),
        (Dialect(escape="\\"), 'a\\,b,c\\\\,d\\n,\\"e"\n', [["a,b", "c\\", "d\\n", '"e"']]),
        (Dialect(escape="\\"), 'C:\\dir\\\n"x"\n', [["C:\\dir\\"], ["x"]]),
        (Dialect(escape="\\"), '"a""b","""c\\""\n', [['a"b', '"c"']]),
        (Dialect(escape="\\", quote=None), "a\\,b,c\n", [["a,b", "c"]]),
        (Dialect(escape="\\", delimiter="::"), 'a\\::b::c\\:d::"\\::"\n', [["a::b", "c\\:d", "::"]]),
        (Dialect(escape="\x00"), '"a\x00"b",c\n', [['a"b', "c"]]),
        (Dialect(escape='"'), '"a""b"\n', [['a"b']]),
        (Dialect(skip_initial_space=True), ' a, b,  c,"d", "e", \n', [[" a", "b", " c", "d", "e", ""]]),
        (Dialect(skip_initial_space=True), "a, b,,c\n", [["a", "b", "", "c"]]),
        (Dialect(delimiter=";", quote="|"), '|a;b|;"c\n', [["a;b", '"c']]),
    ],
)
def test_dialects(dialect: Dialect, text: str, expected: list[list[str]]) -> None:
    records = list(read_records(text, dialect))
    assert [record.fields for record in records] == expected
    assert not any(record.repaired for record in records)


MADE = ["Made in USA", "http", ""]


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ('1,"abc"def\n2,x\n', 2, [["1", '"abc"def'], ["2", "x"]]),
        ('1, "abc" def,2\n', None, [["1", ' "abc" def', "2"]]),
        (
            '18/02/2018,02:15,"2,BH-9827,$78.07,"All-Weather Table, Round 48""","Made in USA",http,\n',
            9,
            [["18/02/2018", "02:15", '"2', "BH-9827", "$78.07", 'All-Weather Table, Round 48"', *MADE]],
        ),
        ('"8\' 9" fly rod, black",x\n', 2, [["8' 9\" fly rod, black", "x"]]),
        ('"8" ""big"" rod, black",x\n', 2, [['8" "big" rod, black', "x"]]),
        ('"say ""x"", ok","8" rod, black"\n', 2, [['say "x", ok', '8" rod, black']]),
        ('a,"5"" pipe"",b"x\n', 3, [["a", '"5"" pipe""', 'b"x']]),
        # The stray quote must not swallow the records up to the next quote.
        ('"a,b\nc,d\n"e",f\n', 2, [['"a', "b"], ["c", "d"], ["e", "f"]]),
        ('a,b\n1,"2\n3,4\n5,"6"\n', 2, [["a", "b"], ["1", '"2'], ["3", "4"], ["5", "6"]]),
        # No reading has the right number of fields: the record is kept verbatim, the next ones are not touched.
        ('"a"b,c,d\n1,2\n', 2, [['"a"b', "c", "d"], ["1", "2"]]),
        ('"a\nb"c,d\n1,2\n', 2, [['"a\nb"c', "d"], ["1", "2"]]),
    ],
)
def test_malformed_quoting(text: str, width: int | None, expected: list[list[str]]) -> None:
    assert fields(text, width=width) == expected


def test_offsets_and_repaired() -> None:
    assert list(read_records('\na,b\r\n\r\n"x"y,z\n""', Dialect())) == [
        Record(["a", "b"], 1, 6, False),
        Record(['"x"y', "z"], 8, 15, True),
        Record([""], 15, 17, False),
    ]


@pytest.mark.parametrize(
    ("text", "first_line", "line"),
    [
        ('id,note\n2,fine\n3,"never closed\n4,lost?\n', 1, 3),
        ('\r\n\r"', 1, 3),
        ('a,"b\nc","d\n', 10, 11),
        ('"a" x,"b', 1, 1),
        ('"a""', 5, 5),
    ],
)
def test_unclosed_quote_names_its_line(text: str, first_line: int, line: int) -> None:
    with pytest.raises(UnclosedQuote, match=rf"line {line}\b.*quote") as caught:
        list(read_records(text, Dialect(), width=2, first_line=first_line))
    assert caught.value.line == line
    assert "never closed\n" not in str(caught.value)


def test_records_before_an_unclosed_quote_are_yielded() -> None:
    reader = read_records('1,2\n"x', Dialect())
    assert next(reader).fields == ["1", "2"]
    with pytest.raises(UnclosedQuote):
        next(reader)


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ("a,b", 0),
        ("a,b\r", 0),
        ("a,b\n", 1),
        ("a,b\r\n", 1),
        ('"a"', 0),
        ('"a"\r', 0),
        ('"a"\n', 1),
        ('"a\n', 0),
        ('"a"b', 0),
        ('"a"b\n', 1),
        ('x\n"a" ', 1),
    ],
)
def test_a_record_whose_end_is_not_certain_is_left_to_the_next_window(text: str, records: int) -> None:
    assert len(list(read_records(text, Dialect(), final=False))) == records


# --- the reference: a character state machine for well-formed text -------------------------------------------------


def reference(text: str, dialect: Dialect) -> list[list[str]]:
    """Fields as one character after the other says it; quotes only directly at the ends of a field."""
    delimiter, quote, escape = dialect.delimiter or "\n", dialect.quote, dialect.escape
    space = " " if dialect.skip_initial_space else ""
    records: list[list[str]] = []
    record: list[str] = []
    field, state, i = "", "start", 0
    begun = False  # whether the record has any character

    def escaped(also: tuple[str, ...]) -> str | None:
        if escape is not None and text.startswith(escape, i):
            for special in (quote, escape, delimiter, *also):
                if special is not None and text.startswith(special, i + 1):
                    return special
        return None

    while i < len(text):
        if state == "quoted":
            special = escaped(("\r\n", "\r", "\n"))
            if special is not None:
                field += special
                i += 1 + len(special)
            elif quote is not None and text.startswith(quote + quote, i):
                field += quote
                i += 2
            elif text[i] == quote:
                state = "plain"
                i += 1
            else:
                field += text[i]
                i += 1
        elif text[i] in "\r\n":
            if begun:
                records.append([*record, field])
            record, field, state, begun = [], "", "start", False
            i += 1
        elif text.startswith(delimiter, i):
            record.append(field)
            field, state, begun = "", "start", True
            i += len(delimiter)
            if space and text.startswith(space, i):
                i += 1
        elif state == "start" and text[i] == quote:
            state, begun = "quoted", True
            i += 1
        else:
            special = escaped(())
            field += text[i] if special is None else special
            state, begun = "plain", True
            i += 1 if special is None else 1 + len(special)
    assert state != "quoted"
    if begun:
        records.append([*record, field])
    return records


@dataclass(frozen=True)
class Written:
    table: list[list[str]]
    dialect: Dialect
    text: str


DELIMITERS = [",", ";", "\t", "|", " ", ":", "^", "~", "::", "\t\t", "||", ", ", " | ", ";;", "\x01", "ab", None]
ALPHABET = st.sampled_from(list(",;\t|: ^~\"'`\\\n\r\x00ab1é-"))


@st.composite
def written(draw: st.DrawFn) -> Written:
    delimiter = draw(st.sampled_from(DELIMITERS))
    quote = draw(st.sampled_from(['"', "'", "`", None]))
    escape = draw(st.sampled_from([None, None, "\\", "\x00"]))
    skip = draw(st.booleans()) and delimiter is not None and not delimiter.endswith(" ")
    dialect = Dialect(delimiter=delimiter, quote=quote, escape=escape, skip_initial_space=skip)
    width = 1 if delimiter is None else draw(st.integers(1, 4))
    table = draw(st.lists(st.lists(st.text(ALPHABET, max_size=6), min_size=1, max_size=width), max_size=5))
    text = ""
    padded = quote is not None and draw(st.booleans()) and (delimiter is None or bool(delimiter.strip(" ")))
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            text += (delimiter or "") if j else ""
            text += " " if j and skip else ""
            if quote is None:
                value = re.sub(r"[\r\n]", "", value)
                if escape is None:
                    value = row[j] = "".join(c for c in value if c not in (delimiter or ""))
                else:
                    # Characters of a longer delimiter would make one across an escape character.
                    longer = delimiter if delimiter is not None and len(delimiter) > 1 else ""
                    value = row[j] = "".join(c for c in value if c not in longer)
                    value = "".join(escape + c if c in (escape, delimiter) else c for c in value)
                text += value
                continue
            special = {quote, escape, "\r", "\n", " ", *(delimiter or "")} - {None}
            if special & set(value) or (value == "" and len(row) == 1) or draw(st.booleans()):
                if escape is None:
                    inner = value.replace(quote, quote + quote)
                else:
                    inner = "".join(escape + c if c in (quote, escape) else c for c in value)
                pads = [draw(st.sampled_from(["", " "])) if padded else "" for _ in range(2)]
                text += pads[0] + quote + inner + quote + pads[1]
            else:
                text += value
        if i + 1 < len(table) or draw(st.booleans()):
            text += draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\n\r\n"]))
    if quote is None:
        # A record of one empty field cannot be written.
        table = [row for row in table if row != [""]]
    return Written(table, dialect, text)


@given(written())
def test_any_table_in_any_dialect_is_read_back(case: Written) -> None:
    records = list(read_records(case.text, case.dialect, width=len(case.table[0]) if case.table else None))
    assert [record.fields for record in records] == case.table
    assert not any(record.repaired for record in records)


@given(written())
def test_well_formed_text_reads_as_the_reference_reads_it(case: Written) -> None:
    quote = case.dialect.quote or "\n"
    if f" {quote}" in case.text or f"{quote} " in case.text:
        return  # the reference knows no spaces around quotes
    assert fields(case.text, case.dialect) == reference(case.text, case.dialect)


@given(written())
def test_spans_leave_out_nothing_but_line_ends(case: Written) -> None:
    position = 0
    for record in read_records(case.text, case.dialect):
        assert not case.text[position : record.start].strip("\r\n")
        assert record.start < record.end
        position = record.end
    assert not case.text[position:].strip("\r\n")


def windowed(text: str, dialect: Dialect, width: int | None, cuts: list[int]) -> list[Record] | int:
    """Read through windows that end at the cuts; the line where it fails, if it does."""
    records: list[Record] = []
    position = 0
    try:
        for cut in [*sorted(cuts), len(text)]:
            if cut < position:
                continue
            base = position
            final = cut == len(text)
            line = 1 + len(re.findall(r"\r\n|\r|\n", text[:base]))
            for record in read_records(text[base:cut], dialect, width=width, final=final, first_line=line):
                records.append(record._replace(start=base + record.start, end=base + record.end))
                position = base + record.end
            if final:
                break
    except UnclosedQuote as error:
        return error.line or 0
    return records


MALFORMED = st.text(st.sampled_from(list('"",,, a\n\r\\:')), max_size=40)
MALFORMED_DIALECTS = st.sampled_from(
    [
        Dialect(),
        Dialect(escape="\\"),
        Dialect(delimiter="::"),
        Dialect(delimiter=", "),
        Dialect(delimiter=None),
        Dialect(delimiter=" "),
        Dialect(delimiter=" :"),
        Dialect(skip_initial_space=True),
        Dialect(delimiter="::", escape="\\", skip_initial_space=True),
    ]
)


@given(
    MALFORMED,
    MALFORMED_DIALECTS,
    st.sampled_from([None, 1, 2, 3]),
    st.lists(st.integers(0, 40), max_size=6),
)
@example('"a,b\n"c",d\n', Dialect(), 2, [5, 8])
@example('x,""",a"\n,"""b",c"\n', Dialect(), 2, [3, 12])
def test_windows_never_change_what_is_read(text: str, dialect: Dialect, width: int | None, cuts: list[int]) -> None:
    cuts = [min(cut, len(text)) for cut in cuts]
    assert windowed(text, dialect, width, cuts) == windowed(text, dialect, width, [])


@given(written(), st.lists(st.integers(0, 200), max_size=8))
def test_windows_of_well_formed_text(case: Written, cuts: list[int]) -> None:
    cuts = [min(cut, len(case.text)) for cut in cuts]
    read = windowed(case.text, case.dialect, None, cuts)
    assert isinstance(read, list)
    assert [record.fields for record in read] == case.table


@given(MALFORMED, MALFORMED_DIALECTS, st.sampled_from([None, 1, 2, 3]))
def test_no_character_is_lost_in_malformed_text(text: str, dialect: Dialect, width: int | None) -> None:
    """Only what belongs to the dialect may be missing from the fields."""
    try:
        records = list(read_records(text, dialect, width=width))
    except UnclosedQuote:
        return
    dropped = set('"\r\n \\' + (dialect.delimiter or ""))
    kept = "".join("".join(record.fields) for record in records)
    assert [c for c in kept if c not in dropped] == [c for c in text if c not in dropped]


@pytest.mark.parametrize(
    ("text", "width", "records"),
    [
        ('"z","\n' * 20_000 + '"\n', 2, 20_000),
        ('"abc"def\n' * 20_000, 2, 20_000),
        ('"a"b"c,d\n' * 20_000, 3, 20_000),
        ('"a,b\n' * 20_000, 2, 19_999),
        ('"a""b\n' * 20_000, 3, 10_000),
        ('"",""",\n' * 20_000 + '"\n', 3, 1),
    ],
)
def test_malformed_records_cost_linear_time(text: str, width: int, records: int) -> None:
    started = time.perf_counter()
    count = 0
    try:
        for _ in read_records(text, Dialect(), width=width):
            count += 1
    except UnclosedQuote:
        pass
    assert time.perf_counter() - started < 10
    assert count >= records


@pytest.mark.parametrize("text", ["a," + "x" * 5_000_000 + "\n", 'a,"' + 'x""\n' * 1_000_000 + '"\n'])
def test_a_huge_field(text: str) -> None:
    [record] = read_records(text, Dialect())
    assert len(record.fields) == 2
    assert len(record.fields[1]) >= 3_000_000
