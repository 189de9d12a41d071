from __future__ import annotations

import errno
import hashlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import (
    FileTooLarge,
    InvalidName,
    NoSpaceLeft,
    NotFound,
    RawFileChanged,
    RawFileMissing,
    SettingsError,
    StorageError,
)
from airflow_lake_provider.raw import RawStore
from tests.raw.test_names import ORDINARY

DATASET = DatasetName("acme", "shop", "orders")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a b%20" / "raw"


@pytest.fixture
def store(root: Path) -> RawStore:
    return RawStore(root)


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_what_is_put_in_comes_out(store: RawStore, root: Path, tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    source = tmp_path / "source.csv"
    source.write_bytes(data)
    stored = store.put(source, DATASET, "f1")
    assert stored.uri == f"{root}/acme/shop/orders/f1/source.csv"
    assert (stored.size, stored.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    path = store.local_path(stored.uri, size=stored.size, sha256=stored.sha256)
    assert path is not None
    assert path.read_bytes() == data
    store.fetch(stored.uri, tmp_path / "new" / "copy", size=stored.size, sha256=stored.sha256)
    assert (tmp_path / "new" / "copy").read_bytes() == data
    with store.opened(stored.uri, tmp_path / "tmp", size=stored.size, sha256=stored.sha256) as opened:
        assert opened == path
    assert not (tmp_path / "tmp").exists()
    assert everything(root)[-1] == "acme/shop/orders/f1/source.csv"
    assert source.exists()


def test_a_stream_is_taken_as_it_comes(store: RawStore) -> None:
    class Dribble(io.RawIOBase):
        left = 5

        def readable(self) -> bool:
            return True

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return b"ab" if self.left >= 0 else b""

    stored = store.put(Dribble(), DATASET, "f1", "x.csv")  # type: ignore[arg-type]
    assert stored.size == 10
    assert Path(stored.uri).read_bytes() == b"ab" * 5


def test_an_empty_file_is_a_file(store: RawStore) -> None:
    stored = store.put(io.BytesIO(), DATASET, "f1", "x.csv")
    assert stored.size == 0
    assert store.exists(stored.uri)


@pytest.mark.parametrize("name", ORDINARY)
def test_a_name_is_kept_character_by_character(store: RawStore, name: str) -> None:
    stored = store.put(io.BytesIO(b"x"), DATASET, "f1", name)
    assert os.listdir(Path(stored.uri).parent) == [name]
    assert stored.uri.endswith(f"/f1/{name}")
    assert store.exists(stored.uri)
    store.delete(stored.uri)
    assert not store.exists(stored.uri)


def test_the_path_of_a_source_is_no_part_of_its_name(store: RawStore, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.csv").write_bytes(b"x")
    assert store.put(tmp_path / "in" / ".." / "in" / "x.csv", DATASET, "f1").uri.endswith("/f1/x.csv")


@pytest.mark.parametrize("name", ["../x.csv", "a/b", "", None])
def test_a_name_that_is_none_is_refused_before_anything_is_stored(
    store: RawStore, root: Path, name: str | None
) -> None:
    with pytest.raises(InvalidName):
        store.put(io.BytesIO(b"x"), DATASET, "f1", name)
    assert not root.exists()


@pytest.mark.parametrize("file_id", ["", "..", "a/b", "-a", "a" * 65, "ä"])
def test_an_id_that_is_none_is_refused(store: RawStore, root: Path, file_id: str) -> None:
    with pytest.raises(InvalidName):
        store.put(io.BytesIO(b"x"), DATASET, file_id, "x.csv")
    assert not root.exists()


def test_the_same_again_changes_nothing_and_other_bytes_are_refused(store: RawStore) -> None:
    first = store.put(io.BytesIO(b"abc"), DATASET, "f1", "x.csv")
    before = Path(first.uri).stat()
    assert store.put(io.BytesIO(b"abc"), DATASET, "f1", "x.csv") == first
    assert Path(first.uri).stat().st_mtime_ns == before.st_mtime_ns
    for other in (b"abd", b"abcd"):
        with pytest.raises(RawFileChanged):
            store.put(io.BytesIO(other), DATASET, "f1", "x.csv")
    assert Path(first.uri).read_bytes() == b"abc"


def test_a_file_that_is_too_large_leaves_nothing(root: Path) -> None:
    store = RawStore(root, max_bytes=1_500_000)
    with pytest.raises(FileTooLarge, match=r"'x\.csv' has more than 1500000 bytes.*LAKE_MAX_FILE_BYTES"):
        store.put(io.BytesIO(bytes(1_500_001)), DATASET, "f1", "x.csv")
    assert not root.exists()
    assert store.put(io.BytesIO(bytes(1_500_000)), DATASET, "f1", "x.csv").size == 1_500_000


class Breaking(io.BytesIO):
    """Gives some bytes and then the error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._pieces: Iterator[bytes] = iter([b"x" * 2_000_000])
        self._error = error

    def read(self, size: int | None = -1) -> bytes:
        for piece in self._pieces:
            return piece
        raise self._error


def test_a_source_that_breaks_leaves_nothing_but_what_was_there(store: RawStore, root: Path) -> None:
    with pytest.raises(StorageError, match=r"'x\.csv' could not be read to its end: Input/output error"):
        store.put(Breaking(OSError(errno.EIO, "Input/output error")), DATASET, "f1", "x.csv")
    assert not root.exists()
    kept = store.put(io.BytesIO(b"x"), DATASET, "f2", "x.csv")
    with pytest.raises(KeyboardInterrupt):
        store.put(Breaking(KeyboardInterrupt()), DATASET, "f1", "x.csv")
    assert everything(root / "acme" / "shop" / "orders") == ["f2", "f2/x.csv"]
    assert store.exists(kept.uri)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_leaves_nothing(
    store: RawStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("airflow_lake_provider.raw.local.os.fsync", full)
    with pytest.raises(NoSpaceLeft, match="could not be written"):
        store.put(io.BytesIO(b"x"), DATASET, "f1", "x.csv")
    assert not root.exists()


def test_a_place_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"")
    with pytest.raises(StorageError, match="could not be"):
        RawStore(tmp_path / "raw").put(io.BytesIO(b"x"), DATASET, "f1", "x.csv")


@pytest.mark.parametrize("name", ["missing.csv", "."])
def test_a_source_that_cannot_be_opened(store: RawStore, root: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound, match="cannot be opened"):
        store.put(tmp_path / name, DATASET, "f1", "x.csv")
    assert not root.exists()


def test_missing_and_changed_files_are_told_apart(store: RawStore, tmp_path: Path) -> None:
    stored = store.put(io.BytesIO(b"abc"), DATASET, "f1", "x.csv")
    path = Path(stored.uri)
    target = tmp_path / "new" / "copy"
    for data in (b"abd", b"ab", b"abcd", b""):
        path.write_bytes(data)
        with pytest.raises(RawFileChanged):
            store.fetch(stored.uri, target, size=stored.size, sha256=stored.sha256)
        with pytest.raises(RawFileChanged):
            store.local_path(stored.uri, size=stored.size, sha256=stored.sha256)
        if len(data) != stored.size:
            with pytest.raises(RawFileChanged, match=f"it has {len(data)} bytes, and 3 were uploaded"):
                store.local_path(stored.uri, size=stored.size)
    path.unlink()
    with pytest.raises(RawFileMissing):
        store.fetch(stored.uri, target, size=stored.size, sha256=stored.sha256)
    with pytest.raises(RawFileMissing):
        store.local_path(stored.uri, size=stored.size)
    assert not target.parent.exists()


def test_a_copy_replaces_only_once_it_is_verified(store: RawStore, tmp_path: Path) -> None:
    stored = store.put(io.BytesIO(b"abc"), DATASET, "f1", "x.csv")
    target = tmp_path / "copy"
    target.write_bytes(b"old")
    with pytest.raises(RawFileChanged):
        store.fetch(stored.uri, target, size=3, sha256="0" * 64)
    assert target.read_bytes() == b"old"
    store.fetch(stored.uri, target, size=3, sha256=stored.sha256.upper())
    assert target.read_bytes() == b"abc"
    assert sorted(os.listdir(tmp_path)) == ["a b%20", "copy"]


def test_removed_is_gone_with_the_folders_it_leaves_empty(store: RawStore, root: Path) -> None:
    first = store.put(io.BytesIO(b"1"), DATASET, "f1", "x.csv")
    second = store.put(io.BytesIO(b"2"), DatasetName("acme", "shop", "returns"), "f2", "x.csv")
    (Path(first.uri).parent / ".upload-0123").write_bytes(b"what a killed upload left")
    store.delete(first.uri)
    assert everything(root) == [
        "acme",
        "acme/shop",
        "acme/shop/returns",
        "acme/shop/returns/f2",
        "acme/shop/returns/f2/x.csv",
    ]
    store.delete(first.uri)
    store.delete(second.uri)
    assert everything(root) == []
    assert root.is_dir()


def test_files_of_an_earlier_root_are_still_found(store: RawStore, tmp_path: Path) -> None:
    stored = store.put(io.BytesIO(b"abc"), DATASET, "f1", "x.csv")
    later = RawStore(tmp_path / "elsewhere")
    assert later.exists(stored.uri)
    later.delete(stored.uri)
    assert not store.exists(stored.uri)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "/etc/passwd",
        "/a/b/c/d/../x.csv",
        "/raw/acme/shop/orders/f1/..",
        "/raw/acme/shop/ord ers/f1/x",
        "http://host/acme/shop/orders/f1/x.csv",
        "acme/shop/orders/f1/x.csv",
        "/acme/shop/orders/f1/x.csv",
        "raw/acme/shop/orders/f1/x.csv",
        "s3:///acme/shop/orders/f1/x.csv",
    ],
)
def test_addresses_that_were_not_given_out_are_refused(store: RawStore, uri: str) -> None:
    for action in (store.delete, store.exists):
        with pytest.raises(StorageError, match="is not the address of an uploaded file"):
            action(uri)


@pytest.mark.parametrize("root", ["relative", "http://host/raw", "s3://", "", "/"])
def test_a_root_that_is_none_is_refused(root: str) -> None:
    with pytest.raises(SettingsError):
        RawStore(root)


def test_a_bucket_without_what_it_needs_tells_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "airflow_lake_provider.raw.s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(SettingsError, match=r"pip install 'airflow-provider-lake\[s3\]'"):
        RawStore("s3://raw").exists("s3://raw/acme/shop/orders/f1/x.csv")


def test_uploads_and_removals_of_one_dataset_do_not_disturb_each_other(store: RawStore, root: Path) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(20):
                stored = store.put(io.BytesIO(b"x"), DATASET, f"f{number}-{round_}", "x.csv")
                store.delete(stored.uri)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert everything(root) == []


@settings(deadline=None)  # it writes to the disk, and waits for it
@given(data=st.binary(max_size=200), pieces=st.integers(1, 50))
def test_size_and_hash_are_those_of_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, pieces: int
) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(pieces)

    store = RawStore(tmp_path_factory.mktemp("raw"))
    stored = store.put(Slow(data), DATASET, "f1", "x.csv")
    assert (stored.size, stored.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert Path(stored.uri).read_bytes() == data
