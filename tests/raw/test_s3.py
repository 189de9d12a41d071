from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import io
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.dataset import DatasetName
from airflow_lake_provider.errors import (
    FileTooLarge,
    NoSpaceLeft,
    RawFileChanged,
    RawFileMissing,
    SettingsError,
    StorageError,
    StorageUnavailable,
)
from airflow_lake_provider.raw import RawStore
from airflow_lake_provider.raw import s3 as raw_s3
from airflow_lake_provider.raw.remote import PART
from tests import s3
from tests.raw.test_names import ORDINARY

pytestmark = pytest.mark.slow

DATASET = DatasetName("acme", "shop", "orders")


@pytest.fixture(scope="module")
def server() -> Iterator[s3.Server]:
    with s3.running() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: s3.Server) -> Any:
    return server.client()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix of the test's own, so that what one leaves is no other one's business."""
    return hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


@pytest.fixture
def store(server: s3.Server, prefix: str) -> RawStore:
    return RawStore(f"s3://{server.bucket}/{prefix}", options=server.options(), retry_seconds=5)


def keys(client: Any, bucket: str, prefix: str) -> list[str]:
    found = client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")
    return [each["Key"] for each in found.get("Contents", ())]


def uploads(client: Any, bucket: str, prefix: str) -> list[str]:
    found = client.list_multipart_uploads(Bucket=bucket)
    return [each["Key"] for each in found.get("Uploads", ()) if each["Key"].startswith(f"{prefix}/")]


@pytest.mark.parametrize("size", [0, 1, 3_000_001, PART, PART + 1, 2 * PART + 7])
def test_what_is_put_in_comes_out(store: RawStore, server: s3.Server, prefix: str, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    stored = store.put(io.BytesIO(data), DATASET, "f1", "x.csv")
    assert stored.uri == f"s3://{server.bucket}/{prefix}/acme/shop/orders/f1/x.csv"
    assert (stored.size, stored.sha256) == (size, hashlib.sha256(data).hexdigest())
    assert store.local_path(stored.uri, size=size) is None
    store.fetch(stored.uri, tmp_path / "copy", size=size, sha256=stored.sha256)
    assert (tmp_path / "copy").read_bytes() == data
    with store.opened(stored.uri, tmp_path / "tmp", size=size, sha256=stored.sha256) as path:
        assert path.name == "x.csv"
        assert path.stat().st_size == size
    assert os.listdir(tmp_path / "tmp") == []


def test_a_name_is_kept_character_by_character(store: RawStore, client: Any, server: s3.Server, prefix: str) -> None:
    for name in ORDINARY:
        stored = store.put(io.BytesIO(b"abc"), DATASET, "f1", name)
        assert keys(client, server.bucket, prefix) == [f"{prefix}/acme/shop/orders/f1/{name}"]
        assert store.exists(stored.uri)
        store.delete(stored.uri)
        assert keys(client, server.bucket, prefix) == []
        assert not store.exists(stored.uri)
        store.delete(stored.uri)


def test_missing_and_changed_files_are_told_apart(
    store: RawStore, client: Any, server: s3.Server, tmp_path: Path
) -> None:
    stored = store.put(io.BytesIO(b"abc"), DATASET, "f1", "x.csv")
    key = stored.uri.removeprefix(f"s3://{server.bucket}/")
    for data in (b"abd", b"ab", b"abcd", b""):
        client.put_object(Bucket=server.bucket, Key=key, Body=data)
        with pytest.raises(RawFileChanged):
            store.fetch(stored.uri, tmp_path / "copy", size=3, sha256=stored.sha256)
    client.delete_object(Bucket=server.bucket, Key=key)
    with pytest.raises(RawFileMissing):
        store.fetch(stored.uri, tmp_path / "copy", size=3, sha256=stored.sha256)
    assert os.listdir(tmp_path) == []


def test_the_same_again_changes_nothing_and_other_bytes_are_refused(store: RawStore) -> None:
    first = store.put(io.BytesIO(b"abc"), DATASET, "f1", "x.csv")
    assert store.put(io.BytesIO(b"abc"), DATASET, "f1", "x.csv") == first
    with pytest.raises(RawFileChanged):
        store.put(io.BytesIO(b"abd"), DATASET, "f1", "x.csv")


def test_a_file_that_is_too_large_leaves_nothing(client: Any, server: s3.Server, prefix: str) -> None:
    limit = PART + 1_000_000
    store = RawStore(f"s3://{server.bucket}/{prefix}", options=server.options(), max_bytes=limit)
    with pytest.raises(FileTooLarge):
        store.put(io.BytesIO(bytes(2 * PART)), DATASET, "f1", "x.csv")
    with pytest.raises(FileTooLarge):
        store.put(io.BytesIO(bytes(limit + 1)), DATASET, "f1", "x.csv")
    assert keys(client, server.bucket, prefix) == []
    assert uploads(client, server.bucket, prefix) == []
    assert store.put(io.BytesIO(bytes(limit)), DATASET, "f1", "x.csv").size == limit


def test_every_version_goes(client: Any, server: s3.Server, prefix: str) -> None:
    bucket = f"versioned-{prefix}"
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    store = RawStore(f"s3://{bucket}", options=server.options())
    stored = store.put(io.BytesIO(b"abc"), DATASET, "f1", "x.csv")
    other = store.put(io.BytesIO(b"abc"), DATASET, "f1", "x.csv.gz")
    client.put_object(Bucket=bucket, Key=stored.uri.removeprefix(f"s3://{bucket}/"), Body=b"second")
    store.delete(stored.uri)
    answer = client.list_object_versions(Bucket=bucket)
    left = [each["Key"] for each in (*answer.get("Versions", ()), *answer.get("DeleteMarkers", ()))]
    assert left == [other.uri.removeprefix(f"s3://{bucket}/")]


def test_every_version_of_a_strange_name_goes_and_no_other_one(client: Any, prefix: str, server: s3.Server) -> None:
    bucket = f"versioned-{prefix}"
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    store = RawStore(f"s3://{bucket}", options=server.options())
    name = "50%20 & [*] #1?versionId=é+.csv"
    others = [f"{name}.gz", "50%20 & [*] #1", "50  & x"]
    kept = [store.put(io.BytesIO(b"a"), DATASET, "f1", each).uri for each in others]
    stored = store.put(io.BytesIO(b"abc"), DATASET, "f1", name)
    client.put_object(Bucket=bucket, Key=stored.uri.removeprefix(f"s3://{bucket}/"), Body=b"second")
    store.delete(stored.uri)
    store.delete(stored.uri)
    answer = client.list_object_versions(Bucket=bucket)
    left = [each["Key"] for each in (*answer.get("Versions", ()), *answer.get("DeleteMarkers", ()))]
    assert sorted(left) == sorted(each.removeprefix(f"s3://{bucket}/") for each in kept)


def test_names_that_continue_one_do_not_make_it_exist(
    store: RawStore, client: Any, server: s3.Server, tmp_path: Path
) -> None:
    uri = f"{store.root}/acme/shop/orders/f1/x.csv"
    client.put_object(Bucket=server.bucket, Key=f"{uri.removeprefix(f's3://{server.bucket}/')}/y", Body=b"abc")
    assert not store.exists(uri)
    with pytest.raises(RawFileMissing):
        store.fetch(uri, tmp_path / "copy", size=0, sha256=hashlib.sha256().hexdigest())


def test_what_others_do_is_seen_at_once(store: RawStore, client: Any, server: s3.Server) -> None:
    uri = f"{store.root}/acme/shop/orders/f1/x.csv"
    key = uri.removeprefix(f"s3://{server.bucket}/")
    place = store._place(uri)
    for data in (b"a", b"abc", b""):
        assert not store.exists(uri)
        client.put_object(Bucket=server.bucket, Key=key, Body=data)
        assert place.size(uri) == len(data)
        client.delete_object(Bucket=server.bucket, Key=key)


def test_a_file_that_is_replaced_while_it_is_read_is_not_mixed(store: RawStore, client: Any, server: s3.Server) -> None:
    stored = store.put(io.BytesIO(bytes(PART + 5)), DATASET, "f1", "x.csv")
    pieces = store._place(stored.uri).read(stored.uri)
    assert next(pieces) == bytes(PART)
    key = stored.uri.removeprefix(f"s3://{server.bucket}/")
    client.put_object(Bucket=server.bucket, Key=key, Body=b"x" * (PART + 5))
    with pytest.raises(StorageUnavailable, match="was replaced while it was read"):
        next(pieces)


class Interrupted(BaseException):
    """What a signal handler may raise, anywhere."""


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), Interrupted()])
@pytest.mark.parametrize("size", [1_000_000, PART + 1_000_000, 3 * PART])
def test_a_source_that_breaks_leaves_nothing(
    store: RawStore, client: Any, server: s3.Server, prefix: str, size: int, error: BaseException
) -> None:
    class Breaking(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            if data := super().read(count):
                return data
            raise error

    with pytest.raises((StorageError, Interrupted)):
        store.put(Breaking(bytes(size)), DATASET, "f1", "x.csv")
    gc.collect()
    assert keys(client, server.bucket, prefix) == []
    assert uploads(client, server.bucket, prefix) == []


@pytest.mark.parametrize("delay", [0, 0.3])
def test_an_upload_that_is_interrupted_while_it_sends_leaves_nothing(
    store: RawStore, client: Any, server: s3.Server, prefix: str, delay: float
) -> None:
    place = raw_s3.Buckets(server.options(), max_bytes=None, retry_seconds=60)
    system = place._system()
    under_way, ended = threading.Event(), threading.Event()
    original = system._call_s3

    async def slow(method: str, *more: Any, **arguments: Any) -> Any:
        if method != "upload_part":
            return await original(method, *more, **arguments)
        under_way.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    system._call_s3 = slow

    def interrupt() -> None:
        under_way.wait(20)
        time.sleep(delay)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(Interrupted):
            place.write(f"{store.root}/acme/shop/orders/f1/x.csv", [bytes(PART), b"x"])
        assert ended.is_set()
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert keys(client, server.bucket, prefix) == []
    assert uploads(client, server.bucket, prefix) == []


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_connects_anew(store: RawStore) -> None:
    stored = store.put(io.BytesIO(b"abc"), DATASET, "f1", "x.csv")
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            code = 0 if store.exists(stored.uri) and not store.exists(f"{stored.uri}x") else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.exists(stored.uri)


def test_options_reach_the_client(server: s3.Server) -> None:
    options = server.options() | {"config_kwargs": {"read_timeout": 7, "s3": {"addressing_style": "path"}}}
    config = raw_s3.Buckets(options, max_bytes=None, retry_seconds=1)._system().s3.meta.config
    assert (config.connect_timeout, config.read_timeout) == (5, 7)
    assert config.s3["addressing_style"] == "path"


def test_a_bucket_that_is_not_there(server: s3.Server) -> None:
    store = RawStore("s3://nowhere", options=server.options(), retry_seconds=1)
    with pytest.raises(StorageError, match=r"there is no such bucket: create it, or correct LAKE_RAW"):
        store.put(io.BytesIO(b"x"), DATASET, "f1", "x.csv")


def test_credentials_that_are_wrong_are_refused_and_not_shown(server: s3.Server) -> None:
    options = server.options() | {"secret": "hunter2"}
    store = RawStore(f"s3://{server.bucket}", options=options, retry_seconds=1)
    with pytest.raises(StorageError, match="refuses the credentials") as caught:
        store.put(io.BytesIO(b"x"), DATASET, "f1", "x.csv")
    assert "hunter2" not in str(caught.value)


def test_credentials_that_are_missing_are_named(server: s3.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    store = RawStore("s3://raw", options={"endpoint_url": server.endpoint})
    with pytest.raises(StorageError, match=r"NoCredentialsError.*AWS_"):
        store.exists("s3://raw/acme/shop/orders/f1/x.csv")


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint_url": "no address hunter2"},
        {"no_such": "hunter2"},
        {"config": 1},
        {"config_kwargs": "hunter2"},
        {"config_kwargs": {"no_such": "hunter2"}},
        {"client_kwargs": "hunter2"},
        {"key": "a", "username": "hunter2"},
        {"version_aware": True},
        {"use_listings_cache": True},
        {"asynchronous": True},
        {"retry_seconds": 1},
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="LAKE_RAW_OPTIONS") as caught:
        RawStore("s3://raw", options=options).exists("s3://raw/acme/shop/orders/f1/x.csv")
    assert "hunter2" not in str(caught.value)


def test_a_storage_that_is_away_is_waited_for_only_so_long(server: s3.Server) -> None:
    with socket.socket() as taken:  # bound and not listening: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        options = server.options(f"http://127.0.0.1:{taken.getsockname()[1]}")
        store = RawStore("s3://raw", options=options, retry_seconds=0.5)
        with pytest.raises(StorageUnavailable, match=r"could not be looked up for 0\.5 s"):
            store.put(io.BytesIO(b"x"), DATASET, "f1", "x.csv")


def test_an_upload_in_parts_waits_only_so_long_too(server: s3.Server) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        options = server.options(f"http://127.0.0.1:{taken.getsockname()[1]}")
        place = raw_s3.Buckets(options, max_bytes=None, retry_seconds=1)
        started = time.monotonic()
        with pytest.raises(StorageUnavailable, match=r"could not be written for 1 s"):
            place.write("s3://raw/acme/shop/orders/f1/x.csv", [bytes(PART), b"x"])
        assert 0.5 < time.monotonic() - started < 10


class Flaky:
    """Stands before the server and cuts the connection: after so many bytes of an answer, the first few times."""

    def __init__(self, port: int, *, after: int, times: int) -> None:
        self._target = port
        self._after = after
        self.times = times
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [near, far]
            for source, target, answers in ((near, far, False), (far, near, True)):
                thread = threading.Thread(target=self._pass_on, args=(source, target, answers), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                passed += len(data)
                if answers and passed > self._after and self.times > 0:
                    self.times -= 1
                    break
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def test_a_broken_transfer_is_taken_up_where_it_broke(store: RawStore, server: s3.Server, tmp_path: Path) -> None:
    data = os.urandom(6_000_000)
    stored = store.put(io.BytesIO(data), DATASET, "f1", "x.csv")
    flaky = Flaky(int(server.endpoint.rsplit(":", 1)[1]), after=2_000_000, times=2)
    try:
        through = RawStore(store.root, options=server.options(flaky.address), retry_seconds=10)
        through.fetch(stored.uri, tmp_path / "copy", size=stored.size, sha256=stored.sha256)
        assert flaky.times == 0
    finally:
        flaky.close()
    assert (tmp_path / "copy").read_bytes() == data


def test_lost_answers_do_not_lose_an_upload(store: RawStore, server: s3.Server, tmp_path: Path) -> None:
    data = os.urandom(PART + 5_000_000)
    flaky = Flaky(int(server.endpoint.rsplit(":", 1)[1]), after=0, times=3)
    try:
        through = RawStore(store.root, options=server.options(flaky.address), retry_seconds=20)
        stored = through.put(io.BytesIO(data), DATASET, "f1", "x.csv")
        assert flaky.times == 0
    finally:
        flaky.close()
    store.fetch(stored.uri, tmp_path / "copy", size=len(data), sha256=hashlib.sha256(data).hexdigest())


def test_the_lost_answer_to_a_completion_is_recognised(store: RawStore, server: s3.Server) -> None:
    place = raw_s3.Buckets(server.options(), max_bytes=None, retry_seconds=5)
    uri = f"{store.root}/acme/shop/orders/f1/x.csv"
    system = place._system()
    call_s3 = system.call_s3

    def answered_twice(method: str, *more: Any, **arguments: Any) -> Any:
        if method == "complete_multipart_upload":
            call_s3(method, *more, **arguments)
        return call_s3(method, *more, **arguments)

    system.call_s3 = answered_twice
    place.write(uri, [bytes(PART), b"x"])
    assert store._place(uri).size(uri) == PART + 1


def test_the_largest_file_fits_into_the_parts_that_a_server_takes(server: s3.Server) -> None:
    place = raw_s3.Buckets(server.options(), max_bytes=5 * 2**40, retry_seconds=1)
    assert place._part * raw_s3.MAX_PARTS >= 5 * 2**40


def test_a_full_storage_is_told_from_one_that_is_away() -> None:
    from botocore.exceptions import ClientError

    error = ClientError({"Error": {"Code": "XMinioStorageFull"}}, "PutObject")
    assert isinstance(raw_s3._translated(error, "s3://b/k", "written"), NoSpaceLeft)
    assert raw_s3._is_outage(ClientError({"Error": {"Code": "SlowDown"}}, "PutObject"))
