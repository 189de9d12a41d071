"""What files that are no delimited text begin with, and what they are called."""

from __future__ import annotations

import json
import re
from typing import Final

_ARCHIVE: Final = "an archive"
_OFFICE: Final = "an Excel workbook or another Office document"

# Beginnings that no text has.
_SURE: Final = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"PK\x05\x06", "a ZIP archive"),
    (b"PK\x07\x08", "a ZIP archive"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Excel workbook or another document of old Office versions"),
    (b"%PDF-", "a PDF document"),
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"Obj\x01", "an Avro file"),
    (b"ARROW1\x00\x00", "an Arrow file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (b"\x04\x22\x4d\x18", "an LZ4 archive"),
    (b"\x1f\x8b", "a gzip archive inside another one"),
    (b"\x1f\x9d", "a compress archive"),
    (b"\x7fELF", "a program"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy file"),
)
# Beginnings that a header might have too: they count only where the rest is no text.
_IF_BINARY: Final = (
    (b"PAR1", "a Parquet file"),
    (b"ORC", "an ORC file"),
    (b"BZh", "a bzip2 archive"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"BM", "a BMP image"),
    (b"II*\x00", "a TIFF image"),
    (b"MM\x00*", "a TIFF image"),
    (b"RIFF", "an image, a sound or a film"),
    (b"ID3", "a sound"),
    (b"OggS", "a sound or a film"),
    (b"fLaC", "a sound"),
    (b"MZ", "a program"),
    (b"\xca\xfe\xba\xbe", "a program"),
    (b"\xcf\xfa\xed\xfe", "a program"),
    (b"FEA1", "a Feather file"),
    (b"\x80\x04\x95", "a Python pickle"),
    (b"\x80\x05\x95", "a Python pickle"),
)

NAMES_OF_OTHERS: Final = {
    **dict.fromkeys(("xlsx", "xlsm", "xlsb", "xls", "ods", "numbers"), "a spreadsheet"),
    **dict.fromkeys(("doc", "docx", "odt", "rtf", "ppt", "pptx", "pdf", "ps", "eps"), "a document"),
    **dict.fromkeys(("json", "jsonl", "ndjson", "geojson", "ipynb"), "JSON"),
    **dict.fromkeys(("html", "htm", "xhtml", "xml", "svg", "kml", "gpx", "rss"), "HTML or XML"),
    **dict.fromkeys(("zip", "7z", "rar", "tar", "tgz", "bz2", "xz", "zst", "lz4", "z"), _ARCHIVE),
    **dict.fromkeys(("parquet", "avro", "orc", "arrow", "feather", "h5", "hdf5", "npy", "npz"), "a columnar file"),
    **dict.fromkeys(("sqlite", "sqlite3", "db", "duckdb", "mdb", "accdb", "dbf"), "a database"),
    **dict.fromkeys(("png", "jpg", "jpeg", "gif", "bmp", "tif", "tiff", "webp", "ico", "heic"), "an image"),
    **dict.fromkeys(("mp3", "wav", "flac", "ogg", "mp4", "mov", "avi", "mkv"), "a sound or a film"),
    **dict.fromkeys(("exe", "dll", "so", "jar", "pkl", "pickle", "pyc", "bin", "iso", "dmg"), "a program or its data"),
}
"""Extensions of other types, and what they stand for."""

_MARKUP: Final = re.compile(r"<(?:\?xml\s|!doctype\s|html[\s>]|!--)", re.IGNORECASE)
_TAG: Final = re.compile(r"<([A-Za-z_][\w:.-]*)(?:\s[^<>]*)?>")
_DOCUMENTS: Final = (
    ("{\\rtf", "an RTF document"),
    ("%!PS", "a PostScript document"),
    ("version https://git-lfs.github.com/spec/", "the pointer of Git LFS to a file that was not fetched"),
)


def binary_type(head: bytes, is_text: bool) -> str | None:
    """The type that the first bytes of a file show, with its article; ``is_text``: they could be read as text."""
    for signature, kind in _SURE:
        if head.startswith(signature):
            is_office = kind == "a ZIP archive" and any(part in head for part in (b"[Content_Types].xml", b"mimetype"))
            return _OFFICE if is_office else kind
    if head[257:262] == b"ustar":
        return "a tar archive"
    if not is_text:
        if head[4:8] == b"ftyp":
            return "an image or a film"
        for signature, kind in _IF_BINARY:
            if head.startswith(signature):
                return kind
    return None


def text_type(text: str, *, columns: bool, whole: bool) -> str | None:
    """The type that a text shows at its beginning, with its article, or None: it may be a table.

    ``columns`` says whether it clearly has columns, ``whole`` whether the text is all of the file.
    """
    text = text.lstrip("\ufeff \t\r\n")
    for beginning, kind in _DOCUMENTS:
        if text.startswith(beginning):
            return kind
    if text.startswith("<"):
        return "HTML or XML" if _is_markup(text, columns) else None
    if text.startswith(("{", "[")):
        return _json_type(text, whole)
    return None


def _is_markup(text: str, columns: bool) -> bool:
    if _MARKUP.match(text):
        return True
    # A tag that is closed again. `<DATE>,<OPEN>` are headers, which no one closes, and `<b>new</b>;1` is a field.
    tag = _TAG.match(text)
    return tag is not None and not columns and re.search(r"</[A-Za-z_][\w:.-]*\s*>", text) is not None


def _json_type(text: str, whole: bool) -> str | None:
    try:
        json.loads(text)
        return "a JSON document"
    except RecursionError:
        return "a JSON document"
    except json.JSONDecodeError as error:
        # All of it was right up to where it was cut.
        cut = error.pos >= len(text) - 16 or error.msg.startswith("Unterminated string")
        if not whole and cut:
            return "a JSON document"
    lines = text.split("\n")
    if not whole and len(lines) > 1:
        lines.pop()  # it may be cut
    lines = [line for line in lines if line.strip()]
    return "JSON Lines" if all(_is_json_container(line) for line in lines) else None


def _is_json_container(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict | list)
    except RecursionError:
        return True
    except ValueError:
        return False
