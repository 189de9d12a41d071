"""Guessing a legacy encoding from the lines of a file that are not ASCII."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Final

EVIDENCE_BYTES: Final = 32 << 10
"""How many bytes of such lines are worth looking at."""

# Those that CSV files come in. Supersets stand for what they contain: cp1252 for ISO-8859-1, cp932 for Shift JIS,
# gb18030 for GBK, cp949 for EUC-KR.
_CANDIDATES: Final = {
    "cp1252": "latin", "iso8859-15": "latin", "cp1250": "latin", "iso8859-2": "latin", "cp1254": "latin",
    "cp1257": "latin", "mac-roman": "latin", "cp437": "latin", "cp850": "latin", "cp852": "latin",
    "cp1251": "other", "koi8-r": "other", "koi8-u": "other", "iso8859-5": "other", "cp866": "other",
    "cp1253": "other", "iso8859-7": "other", "cp1255": "other", "cp1256": "other", "cp874": "other",
    "cp1258": "latin", "cp932": "cjk", "euc-jp": "cjk", "gb18030": "cjk", "big5hkscs": "cjk",
    "cp949": "cjk",
}  # fmt: skip

_THIN: Final = 40
"""With fewer bytes beyond ASCII than this, statistics between two Latin encodings are noise."""

_RUN: Final = re.compile(rb"[\x80-\xff]+")
# What cp1252 gives for text in another encoding: a sign, or a capital, in the middle of a word.
_ODD: Final = re.compile(
    r"(?<=[^\W\d_])[\u20ac\u201a\u201e\u2026\u2020\u2021\u02c6\u2030\u2039\u201c\u2022\u02dc\u2122\u203a"
    r"\xa1-\xa9\xab\xac\xae-\xb4\xb6-\xb9\xbb-\xbf\xd7\xf7](?=[^\W\d_])"
    r"|(?<=[a-z\xdf-\xf6\xf8-\xff])[\xc0-\xd6\xd8-\xde\u0160\u0152\u017d\u0178](?=[a-z\xdf-\xf6\xf8-\xff])"
)


@dataclass(frozen=True, slots=True)
class Guess:
    """A Python codec name, and why it comes to mind (to follow a comma)."""

    codec: str
    why: str


def guess_legacy(lines: bytes) -> list[Guess]:
    """The encodings that ``lines`` may be in, the likeliest first; all of them decode these lines.

    cp1252 comes first where it makes sense and the evidence for another Latin encoding is thin.
    """
    import chardet

    if not lines:
        return [Guess("cp1252", "the usual one")]
    found = [
        (str(result["encoding"]), float(result["confidence"] or 0))
        for result in chardet.detect_all(
            lines,
            ignore_threshold=True,
            max_bytes=EVIDENCE_BYTES,
            compat_names=False,
            include_encodings=list(_CANDIDATES),
        )
        if result["encoding"]
    ]
    runs = _RUN.findall(lines)
    high = sum(map(len, runs))
    latin = high < 2 * len(runs)
    # Letters beyond ASCII stand alone between others in Latin text, and side by side in Greek, Cyrillic and so on.
    found.sort(key=lambda item: latin and _CANDIDATES.get(item[0]) == "other")
    guesses = [Guess(name, "the likeliest by its letters") for name, _ in found if _decodes(lines, name)]
    if not _decodes(lines, "cp1252"):
        return guesses
    scores = dict(found)
    best = guesses[0].codec if guesses else "cp1252"
    odd = len(_ODD.findall(lines.decode("cp1252")))
    usual = Guess("cp1252", "the usual one for such text")
    if latin and odd * 5 <= high and (high < _THIN or scores.get("cp1252", 0.0) >= 0.9 * scores.get(best, 0.0)):
        return [usual, *(guess for guess in guesses if guess.codec != "cp1252")]
    return guesses if any(guess.codec == "cp1252" for guess in guesses) else [*guesses, usual]


def _decodes(lines: bytes, codec: str) -> bool:
    try:
        # Incrementally: the last line may have been cut within a character.
        codecs.getincrementaldecoder(codec)().decode(lines)
    except (UnicodeDecodeError, LookupError):
        return False
    return True
