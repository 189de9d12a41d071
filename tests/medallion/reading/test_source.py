"""Opening files: plain, gzip, damaged, too large."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from airflow_lake_provider.errors import DecompressionLimit, NotFound, SettingsError, UnreadableFile
from airflow_lake_provider.medallion.reading.source import Limits, Source

TEXT = b"a,b\n" + b"".join(b"%d,%d\n" % (i, i * 7919 % 10007) for i in range(3000))


def write(folder: Path, data: bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_a_plain_file_is_read_at_any_offset(tmp_path: Path) -> None:
    with Source(write(tmp_path, TEXT)) as source:
        assert (source.name, source.size, source.compressed) == ("a.csv", len(TEXT), False)
        assert source.read(4, 10) == TEXT[4:14]
        assert source.read(len(TEXT) - 3, 10) == TEXT[-3:]
        assert source.read(len(TEXT) + 5, 10) == b""
        target = bytearray(20)
        assert source.read_into(memoryview(target), len(TEXT) - 7) == 7
        assert target[:7] == TEXT[-7:]


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv", "a.csv.gz.gz", "A.GZ"])
def test_gzip_is_known_by_its_content(tmp_path: Path, name: str) -> None:
    with Source(write(tmp_path, gzip.compress(TEXT), name)) as source:
        assert source.compressed
        assert source.size == len(TEXT)
        assert source.read(0, source.size) == TEXT


def test_a_plain_file_called_gz_is_plain(tmp_path: Path) -> None:
    with Source(write(tmp_path, TEXT, "a.csv.gz")) as source:
        assert not source.compressed
        assert source.read(0, 3) == b"a,b"


@pytest.mark.parametrize("between", [b"", b"\0" * 700])
def test_every_member_of_a_gzip_file_counts(tmp_path: Path, between: bytes) -> None:
    data = gzip.compress(b"") + gzip.compress(TEXT) + between + gzip.compress(b"1,2\n") + between
    with Source(write(tmp_path, data)) as source:
        assert source.read(0, source.size) == TEXT + b"1,2\n"


@pytest.mark.parametrize("kept", [2, 9, 18, -9, -1])
def test_a_truncated_gzip_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path, gzip.compress(TEXT)[:kept])
    with pytest.raises(UnreadableFile, match=r"a\.csv is a gzip file that ends too early: it was cut short"):
        Source(path)


def test_a_truncated_second_member_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(TEXT) + gzip.compress(TEXT)[:-3])
    with pytest.raises(UnreadableFile, match="ends too early, in its part 2"):
        Source(path)


@pytest.mark.parametrize("place", [3, 40, -6, -2])
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, place: int) -> None:
    data = bytearray(gzip.compress(TEXT))
    data[place] ^= 0xFF
    with pytest.raises(UnreadableFile, match="gzip file"):
        Source(write(tmp_path, bytes(data)))


def test_garbage_behind_a_gzip_member_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="damaged gzip file behind its part 1"):
        Source(write(tmp_path, gzip.compress(TEXT) + b"1,2\n3,4\n"))


def test_a_large_gzip_file_is_unpacked_to_disk_and_leaves_nothing(tmp_path: Path) -> None:
    text = os.urandom(1 << 20) * 9
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = write(tmp_path, gzip.compress(text, 1))
    with Source(path, temp_dir=scratch) as source:
        assert source.size == len(text)
        assert source.read(8 << 20, 1 << 20) == text[8 << 20 :]
    assert list(scratch.iterdir()) == []


def test_limits_are_held(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(b"x" * (70 << 20), 1))
    with pytest.raises(DecompressionLimit, match=r"more than 1,000 bytes.*max_bytes"):
        Source(path, limits=Limits(max_bytes=1000))
    with pytest.raises(DecompressionLimit, match=r"more than 200 times its compressed size.*max_ratio"):
        Source(path)
    with Source(path, limits=Limits(max_ratio=1500)) as source:
        assert source.size == 70 << 20


def test_limits_must_be_positive() -> None:
    with pytest.raises(SettingsError, match="max_ratio=0"):
        Limits(max_ratio=0)


def test_what_is_not_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"gone\.csv cannot be read: there is no such file"):
        Source(tmp_path / "gone.csv")
    with pytest.raises(NotFound, match="it is a folder"):
        Source(tmp_path)
    with pytest.raises(NotFound, match=r"^upload\.csv cannot"):
        Source(tmp_path / "x", name="upload.csv")
