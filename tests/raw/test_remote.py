from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from airflow_lake_provider.errors import RawFileMissing, StorageError, StorageUnavailable
from airflow_lake_provider.raw import remote

NAMES = ["x.csv", "a?versionId=b.csv", "50% [*] #1.csv", "é.csv"]


def translated(error: Exception, uri: str, verb: str) -> Exception:
    return RawFileMissing(uri) if isinstance(error, FileNotFoundError) else StorageError(f"{uri} {verb}")


def is_outage(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


@pytest.fixture(params=["memory", "local"])
def place(request: pytest.FixtureRequest) -> remote.RemoteFiles:
    def connect() -> Any:
        return fsspec.filesystem(request.param, auto_mkdir=True) if request.param == "local" else memory()

    return remote.RemoteFiles(connect, part=1000, retry_seconds=0, is_outage=is_outage, translated=translated)


def memory() -> Any:
    return fsspec.filesystem("memory", skip_instance_cache=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 1, 1000, 1001, 20_000])
def test_any_file_system_of_fsspec_serves(
    place: remote.RemoteFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    monkeypatch.setattr(remote, "PART", 900)
    uri = f"any://{tmp_path}/folder/{name}"
    data = bytes(itertools.islice(itertools.cycle(range(251)), size))
    assert place.size(uri) is None
    place.write(uri, [data[:700], data[700:]])
    assert place.size(uri) == size
    assert place.size(f"any://{tmp_path}/folder") is None
    assert b"".join(place.read(uri)) == data
    assert all(len(piece) <= 900 for piece in place.read(uri))
    place.delete(uri)
    assert place.size(uri) is None
    place.delete(uri)
    with pytest.raises(RawFileMissing):
        list(place.read(uri))


@pytest.mark.parametrize("place", ["local"], indirect=True)  # the one in memory knows no files that are not committed
def test_what_breaks_is_not_there(place: remote.RemoteFiles, tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield bytes(5000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.write(f"any://{tmp_path}/x.csv", chunks())
    assert place.size(f"any://{tmp_path}/x.csv") is None


def test_an_outage_is_waited_for_and_anything_else_is_not() -> None:
    place = remote.RemoteFiles(memory, part=1000, retry_seconds=5, is_outage=is_outage, translated=translated)
    errors: Iterator[Exception] = iter([ConnectionError(), ConnectionError()])

    def action() -> str:
        for error in errors:
            raise error
        return "done"

    assert place._call("any://x", "read", action) == "done"
    errors = iter([ValueError(), ValueError()])
    with pytest.raises(StorageError, match="any://x read"):
        place._call("any://x", "read", action)
    assert len(list(errors)) == 1


def test_patience_ends() -> None:
    assert remote.Patience(0).pause() is None
    patience = remote.Patience(100)
    assert [patience.pause() for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    place = remote.RemoteFiles(memory, part=1000, retry_seconds=0.1, is_outage=is_outage, translated=translated)

    def action() -> None:
        raise ConnectionResetError

    for call in (place._call, place._once):
        with pytest.raises(StorageUnavailable, match=r"could not be read for 0\.1 s.*ConnectionResetError"):
            call("any://x", "read", action)


def test_the_code_of_an_answer_is_found_behind_other_errors() -> None:
    class Answer(Exception):
        response = {"Error": {"Code": "SlowDown"}}  # noqa: RUF012

    outer = OSError("x")
    outer.__cause__ = OSError("y")
    assert remote.error_code(outer) == ""
    outer.__cause__.__cause__ = Answer()
    assert remote.error_code(outer) == "SlowDown"


def test_parts_have_the_same_size_but_for_the_last_one() -> None:
    assert list(remote.parts([b"abc", b"defg"], 3)) == [b"abc", b"def", b"g"]
    assert list(remote.parts([b"abc"], 3)) == [b"abc"]
    assert list(remote.parts([], 3)) == [b""]
