"""A real S3 server for tests: SeaweedFS, in a folder of its own, on ports that are free."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KEY, _SECRET = "admin", "only-for-tests"
_PORTS = ("master.port", "volume.port", "filer.port", "s3.port", "s3.port.iceberg", "s3.port.lance", "admin.port")
_GRPC = 10_000  # each of its ports has a second one that is so much higher


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its address, the one of its Iceberg REST catalog, and a bucket that exists."""

    endpoint: str
    catalog: str
    bucket: str

    def options(self, endpoint: str | None = None) -> dict[str, Any]:
        """What s3fs needs to reach it."""
        return {
            "endpoint_url": endpoint or self.endpoint,
            "key": _KEY,
            "secret": _SECRET,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def client(self) -> Any:
        """A client of its own, which gives up at the first error."""
        from botocore.config import Config
        from botocore.session import Session

        return Session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=_KEY,
            aws_secret_access_key=_SECRET,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1}),
        )


@contextlib.contextmanager
def running(bucket: str = "raw", warehouse: str = "warehouse") -> Iterator[Server]:
    """Start a server with one bucket and one bucket for tables; stop it and remove what it stored at the end."""
    beside_python = Path(sys.executable).with_name("weed")
    weed = str(beside_python) if beside_python.exists() else shutil.which("weed")
    assert weed, "The tests need SeaweedFS: install the development dependencies."
    # Not pytest's folder: the path of a Unix socket has to be short.
    with tempfile.TemporaryDirectory(prefix="weed-") as folder:
        ports = _free_ports(len(_PORTS))
        command = [
            weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false", "-admin.ui=false",
            f"-bucket={bucket}", f"-tableBucket={warehouse}", "-s3.autoCreateBucket=false",
            f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock",
            *(f"-{name}={port}" for name, port in zip(_PORTS, ports, strict=True)),
        ]  # fmt: skip
        environment = os.environ | {"AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}
        with open(Path(folder, "log"), "wb") as log:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        address = dict(zip(_PORTS, (f"http://127.0.0.1:{port}" for port in ports), strict=True))
        server = Server(address["s3.port"], address["s3.port.iceberg"], bucket)
        try:
            _wait_until_ready(server, process, Path(folder, "log"))
            yield server
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    client = server.client()
    deadline = time.monotonic() + 60
    while True:
        try:
            client.head_bucket(Bucket=server.bucket)
            return
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The S3 server did not start ({error}):\n{log.read_text()[-4000:]}") from error
        threading.Event().wait(0.1)


def _free_ports(count: int) -> list[int]:
    """Ports that are free, with their second ones; held together while they are looked for, so that all differ."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            first = held.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            second = held.enter_context(socket.socket())
            if port + _GRPC > 65_535:
                continue
            try:
                second.bind(("127.0.0.1", port + _GRPC))
            except OSError:
                continue
            found.append(port)
    return found
