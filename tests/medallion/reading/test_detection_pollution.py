"""Tables of our own, written in every dialect and spoilt in many ways, must be found out without any setting."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from airflow_lake_provider.medallion.dialect import Dialect, ReadOptions
from airflow_lake_provider.medallion.reading.detection import detect
from airflow_lake_provider.medallion.reading.records import read_records

Table = list[list[str]]


def sales() -> Table:
    words = [
        "Kettle, blue",
        'Pipe 5"',
        "Chair",
        "Lamp; large",
        "Desk (oak)",
        "Shelf 80x30",
        "Rug",
        'The "Big" One, red',
    ]
    table = [["day", "time", "amount", "article", "price", "what", "made in", "link", "comment"]]
    table.extend(
        [
            f"{i % 28 + 1:02}/{i % 12 + 1:02}/2021",
            f"{i % 24:02}:{i * 7 % 60:02}",
            str(i % 9 + 1),
            f"AB-{1000 + i * 37}",
            f"${i * 3.25 + 0.5:.2f}",
            words[i % len(words)],
            ["Made in Italy", "Made in France"][i % 2],
            f"http://shop.example/item?id={i}&x=1",
            ["", "", "fragile", "sold out, back in May"][i % 4],
        ]
        for i in range(60)
    )
    return table


def people() -> Table:
    table = [["id", "name", "born", "mail", "active", "score"]]
    table.extend(
        [
            str(i),
            ["Ann O'Neil", "Bo Li", "Cy d'Arc", "Dee, Jr."][i % 4],
            f"19{50 + i}-0{i % 9 + 1}-1{i % 9}",
            f"user{i}@example.org",
            ["true", "false"][i % 2],
            f"{i * 1.7:.1f}",
        ]
        for i in range(40)
    )
    return table


def texts() -> Table:
    """Nothing but text, with line breaks and quotes."""
    table = [["country", "capital", "motto"]]
    table.extend(
        [
            f"Country {chr(65 + i % 26)}",
            ["Bern", "Rome", "Oslo, East", "St. Paul"][i % 4],
            ["Unity and hope", "First line\nsecond, line", 'They say "go on", and go', "Peace"][i % 4],
        ]
        for i in range(30)
    )
    return table


def measures() -> Table:
    """Numbers with decimal commas, as half of Europe writes them."""
    table = [["Ort", "Wert", "Breite", "Stand"]]
    table.extend([f"Ort {i}", f"{i},{i % 10}5", f"{50 + i % 5},{i:03}", f"{i % 28 + 1:02}.03.2020"] for i in range(25))
    return table


def small() -> Table:
    return [["k", "v"], ["1", "x y"], ["2", "z"]]


TABLES: dict[str, Callable[[], Table]] = {
    "sales": sales,
    "people": people,
    "texts": texts,
    "measures": measures,
    "small": small,
}


@dataclass(frozen=True)
class Style:
    delimiter: str = ","
    quote: str = '"'
    escape: str | None = None
    line_end: str = "\n"
    every: bool = False

    def field(self, text: str) -> str:
        special = [self.quote, "\r", "\n", self.delimiter, *([" "] if self.delimiter == " " else [])]
        if not self.every and not any(part in text for part in special):
            return text
        return self.quote + text.replace(self.quote, (self.escape or self.quote) + self.quote) + self.quote

    def line(self, row: list[str]) -> str:
        return self.delimiter.join(map(self.field, row))

    def write(self, table: Table) -> str:
        return "".join(self.line(row) + self.line_end for row in table)


def records(text: str, name: str = "table.csv") -> tuple[Dialect, Table]:
    detection = detect(text, complete=True, options=ReadOptions(), name=name)
    width = detection.width
    return detection.dialect, [record.fields for record in read_records(text, detection.dialect, width=width)]


STYLES = [
    *(Style(delimiter=d) for d in [",", ";", "\t", "|", " ", "^", "~", ":", "\t\t", "||", "::", ";;", "~|~", "\x01"]),
    *(Style(delimiter=d, every=True) for d in [",", ";", "\t", "|", " ", "::"]),
    *(Style(quote=q, delimiter=d, every=e) for q in ["'", "`"] for d in [",", ";", "\t"] for e in [True, False]),
    *(Style(escape=e, delimiter=d) for e in ["\\", "\x00"] for d in [",", ";", "\t"]),
    *(Style(line_end=e, delimiter=d) for e in ["\r\n", "\r"] for d in [",", ";"]),
    Style(quote="'", escape="\\"),
    Style(every=True, escape="\\", line_end="\r\n"),
]


def _name(value: object) -> str:
    return repr(value).replace("Style(", "").rstrip(")") if isinstance(value, Style) else str(value)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("style", STYLES, ids=_name)
def test_every_dialect(table: str, style: Style) -> None:
    rows = TABLES[table]()
    dialect, read = records(style.write(rows))
    assert read == rows
    assert (dialect.header, dialect.preamble) == (True, 0)
    assert dialect.delimiter == style.delimiter


@pytest.mark.parametrize("table", ["sales", "people", "texts"])
@pytest.mark.parametrize("delimiter", [", ", "; "])
def test_a_space_after_each_delimiter(table: str, delimiter: str) -> None:
    rows = TABLES[table]()
    dialect, read = records(Style(delimiter=delimiter).write(rows))
    assert read == rows
    assert dialect.header


@pytest.mark.parametrize("table", ["sales", "people"])
@pytest.mark.parametrize("style", [*STYLES[:6], Style(quote="'"), Style(escape="\\")], ids=_name)
def test_without_header(table: str, style: Style) -> None:
    rows = TABLES[table]()[1:]
    dialect, read = records(style.write(rows))
    assert read == rows
    assert (dialect.header, dialect.preamble) == (False, 0)


@pytest.mark.parametrize("table", ["sales", "people", "texts", "measures"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("lines", [1, 2, 5])
def test_preamble(table: str, delimiter: str, padded: bool, lines: int) -> None:
    rows = TABLES[table]()
    style = Style(delimiter=delimiter)
    before = [["Report of the year 2021"], ["drawn up 2022-01-03"], ["", ""], ["Contents: sales"], ["x"]][:lines]
    if padded:
        before = [[*row, *[""] * (len(rows[0]) - len(row))] for row in before]
    text = style.write(before + rows)
    dialect, read = records(text)
    assert dialect.preamble == len(read) - len(rows)
    assert dialect.header
    assert dialect.delimiter == delimiter
    assert read[dialect.preamble :] == rows


@pytest.mark.parametrize("table", ["sales", "people", "texts"])
@pytest.mark.parametrize("style", STYLES[:6], ids=_name)
@pytest.mark.parametrize("seed", range(4))
def test_records_with_fields_too_many_or_too_few(table: str, style: Style, seed: int) -> None:
    rows = TABLES[table]()
    chance = random.Random(seed)
    for row in rows[1:]:
        if chance.random() < 0.2:
            row.extend(chance.choice(["x", "5", ""]) for _ in range(chance.randint(1, 3)))
        elif chance.random() < 0.2:
            del row[max(1, len(row) - chance.randint(1, 2)) :]
    dialect, read = records(style.write(rows))
    assert read == rows
    assert (dialect.header, dialect.preamble) == (True, 0)


@pytest.mark.parametrize("table", ["sales", "people", "texts"])
def test_rows_of_another_table_behind(table: str) -> None:
    rows = [*TABLES[table](), ["a", "b"], *([str(i), "x"] for i in range(8))]
    dialect, read = records(Style().write(rows))
    assert read == rows
    assert (dialect.header, dialect.preamble) == (True, 0)


@pytest.mark.parametrize("table", ["sales", "people", "texts", "measures"])
@pytest.mark.parametrize("delimiter", [",", ";", "|"])
@pytest.mark.parametrize("seed", range(6))
def test_a_stray_quote_before_a_cell(table: str, delimiter: str, seed: int) -> None:
    """It spoils its own record at most; the delimiter and all other records stay as they are."""
    rows = TABLES[table]()
    style = Style(delimiter=delimiter, every=True)
    chance = random.Random(seed)
    place = chance.randrange(1, len(rows) - 1)
    lines = [style.line(row) for row in rows]
    column = chance.randrange(len(rows[0]))
    pieces = [style.field(text) for text in rows[place]]
    pieces[column] = '"' + pieces[column]
    lines[place] = delimiter.join(pieces)
    dialect, read = records("\n".join(lines) + "\n")
    assert dialect.delimiter == delimiter
    assert dialect.quote == '"'
    assert read[:place] == rows[:place]
    assert [row for row in read[place + 1 :] if row in rows][-1] == rows[-1]


@pytest.mark.parametrize("delimiter", ["\t", "|"])
def test_quotes_as_ordinary_characters(delimiter: str) -> None:
    rows = [["id", "title", "size"]] + [
        [str(i), ['"Quoted" opening', '"never closed', 'inch 5"', "plain, text"][i % 4], f"{i}.5"] for i in range(40)
    ]
    text = "".join(delimiter.join(row) + "\n" for row in rows)
    dialect, read = records(text)
    assert dialect.quote is None
    assert read == rows


def test_apostrophes_are_no_quotes() -> None:
    rows = [["id", "text"]] + [[str(i), ["'tis the season", "dogs'", "'a' and 'b'", "it's"][i % 4]] for i in range(40)]
    dialect, read = records(Style().write(rows))
    assert dialect.quote == '"'
    assert read == rows


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("style", STYLES[:8], ids=_name)
def test_a_sample_that_ends_anywhere(table: str, style: Style) -> None:
    rows = TABLES[table]() * 3
    text = style.write(rows)
    for size in (len(text) // 2, len(text) // 2 + 7, len(text) - 3):
        if len(re.findall("\n", text[:size])) < 4:
            continue
        detection = detect(text[:size], complete=False, options=ReadOptions())
        assert detection.dialect.delimiter == style.delimiter
        assert detection.header == rows[0]
