"""Is it delimited text? The first 64 KiB of a file and its name decide together.

- Bytes that are clearly another type are refused whatever the file is called: archives, Office documents, images,
  columnar and database files, programs, other binary data; and among texts HTML, XML, JSON (one document, or one object
  or array in every line), RTF, PostScript and Git LFS pointers.
- Text is accepted under any usual name for it (``.csv``, ``.tsv``, ``.tab``, ``.psv``, ``.txt``, ``.dat``), under an
  unknown extension and under none, in UTF-8, UTF-16, UTF-32 or a legacy encoding. A few NULs do not matter.
- Text under the name of another type (``.json``, ``.xls``, ``.html``, …) is accepted only if it clearly has columns,
  since many programs write tables under such names; what could be either is refused.
- A file that begins with the gzip magic is judged by what it holds, whatever it is called.

So a table whose first header or field merely looks like a tag or like JSON (``<DATE>,<OPEN>``, ``[id],[name]``) stays a
table, while lines of bare JSON objects are JSON Lines under every name.
"""

from __future__ import annotations

import codecs
import enum
import gzip
import os
import re
import zlib
from pathlib import Path
from typing import Final

from airflow_lake_provider.errors import NotFound, StorageError, UnsupportedFile
from airflow_lake_provider.medallion.signatures import NAMES_OF_OTHERS, binary_type, text_type

HEAD: Final = 64 << 10
"""How many bytes, after unpacking, are looked at."""

_MARKS: Final = (
    # UTF-32 first: its little-endian mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Control characters that stand in ordinary texts: white space, the end mark of DOS, and those that are used as
# delimiters (Hive's Ctrl-A to Ctrl-C, the four separators of ASCII). NUL is not among them and is counted.
_HARMLESS: Final = frozenset("\t\n\v\f\r\x1a\x01\x02\x03\x1c\x1d\x1e\x1f")
_STRANGE: Final = re.compile(
    "[" + "".join(re.escape(chr(code)) for code in (*range(32), 0x7F) if chr(code) not in _HARMLESS) + "]"
)


class ContentKind(enum.Enum):
    """How the text is stored."""

    TEXT = "text"
    GZIP = "gzip"


def check_content(path: str | os.PathLike[str], name: str | None = None) -> ContentKind:
    """Return how the delimited text in the local file ``path`` is stored; ``name`` is what its uploader calls it.

    Raises UnsupportedFile where it is something else, or nothing; the sentence says what it looks like and what was
    expected. A damaged gzip file is left to whoever reads it whole. Raises NotFound or StorageError where it cannot be
    read.
    """
    path = Path(path)
    name = path.name if name is None else name
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
        kind = ContentKind.GZIP if head.startswith(b"\x1f\x8b") else ContentKind.TEXT
        if kind is ContentKind.GZIP:
            head, damaged = _unpacked_head(path)
            if damaged and not head:
                return kind
    except (FileNotFoundError, IsADirectoryError) as error:
        raise NotFound(f"{name} cannot be read ({error.strerror}): name a file that is there.") from None
    except OSError as error:
        raise StorageError(f"{name} cannot be read: {error.strerror or type(error).__name__}.") from None
    found = _other_type(head, _extension(name))
    if found is not None:
        verb = "holds" if kind is ContentKind.GZIP else "is"
        raise UnsupportedFile(
            f"{name} {verb} {found}, and delimited text was expected (CSV, TSV, PSV or TXT, plain or as .gz): "
            "export the data as CSV and upload that."
        )
    return kind


def _unpacked_head(path: Path) -> tuple[bytes, bool]:
    """The first bytes that come out of a gzip file, and whether it is damaged there."""
    head = b""
    with gzip.open(path) as file:
        try:
            while len(head) < HEAD and (data := file.read(min(4096, HEAD - len(head)))):
                head += data
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return head, True
    return head, False


def _extension(name: str) -> str:
    """The last extension that tells the type, in lower case and without its dot; empty where there is none."""
    stem = name.lower().strip()
    for packed in (".gz", ".gzip"):
        stem = stem.removesuffix(packed)
    return stem.rpartition(".")[2] if "." in stem else ""


def _other_type(head: bytes, extension: str) -> str | None:
    """What the bytes are if they are not delimited text, to follow "is" or "holds"."""
    if not head:
        return "nothing at all (no bytes)"
    text = _decoded(head)
    found = binary_type(head, text is not None)
    if found is not None:
        return found
    if text is None:
        other = NAMES_OF_OTHERS.get(extension)
        return f"binary data (by its name {other})" if other else "binary data"
    whole = len(head) < HEAD
    if whole and not text.strip():
        return "nothing but blank lines"
    columns = _has_columns(text, whole)
    found = text_type(text, columns=columns, whole=whole)
    if found is not None:
        return found
    other = NAMES_OF_OTHERS.get(extension)
    if other is not None and not columns:
        return f"called {other} and has no columns that show it to be a table"
    return None


def _decoded(head: bytes) -> str | None:
    """The text in the bytes, or None where they are binary data."""
    for mark, codec in _MARKS:
        if head.startswith(mark):
            text = _strictly(head[len(mark) :], codec)
            if text is not None:
                return text if _is_plain(text, 0.1) else None
    codec_by_zeros = _by_zeros(head)
    if codec_by_zeros is not None:
        text = _strictly(head, codec_by_zeros)
        if text is not None and _is_plain(text, 0.01):
            return text
    text = _strictly(head, "utf-8")
    if text is not None:
        return text if _is_plain(text, 0.1) else None
    # Every byte is a character in Latin-1, so what is not UTF-8 needs better proof that it is text at all.
    text = head.decode("latin-1")
    return text if _is_plain(text, 0.01) else None


def _strictly(data: bytes, codec: str) -> str | None:
    """Decoded, but for a character that is cut off at the end; None where that is impossible."""
    try:
        return codecs.getincrementaldecoder(codec)().decode(data)
    except UnicodeDecodeError:
        return None


def _is_plain(text: str, most: float) -> bool:
    """Whether at most that share of the characters, or a single one, is a control character that texts do not have."""
    return len(_STRANGE.findall(text)) <= max(1, most * len(text))


def _by_zeros(head: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark, where delimiters and line ends leave zeros in the same place of every unit."""
    if b"\0" not in head:
        return None
    quarters = [head[place::4].count(0) / max(1, len(head[place::4])) for place in range(4)]
    if len(head) >= 8 and min(quarters[2:]) > 0.95 and quarters[0] < 0.05:
        return "utf-32-le"
    if len(head) >= 8 and min(quarters[:2]) > 0.95 and quarters[3] < 0.05:
        return "utf-32-be"
    even, odd = (head[place::2].count(0) / max(1, len(head[place::2])) for place in range(2))
    if odd >= 0.1 and even <= 0.01:
        return "utf-16-le"
    if even >= 0.1 and odd <= 0.01:
        return "utf-16-be"
    return None


def _has_columns(text: str, whole: bool) -> bool:
    """Whether some usual delimiter stands equally often, outside quotes, in nearly all of the first lines."""
    lines = [line for line in text.splitlines()[:100] if line.strip()]
    if not whole and len(lines) > 1 and len(text.splitlines()) <= 100:
        lines.pop()  # it may be cut
    if len(lines) < 2:
        return False
    for delimiter in (",", ";", "\t", "|"):
        counts = [_outside_quotes(line).count(delimiter) for line in lines]
        if counts[0] and counts.count(counts[0]) >= 0.8 * len(counts):
            return True
    return False


def _outside_quotes(line: str) -> str:
    return "".join(line.split('"')[::2])
