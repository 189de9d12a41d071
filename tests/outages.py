"""What can be full or away for a while, and files to be ingested meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

from airflow_lake_provider.ledger import embedded

LARGE_ROWS = 21_000  # more than 4 MB, and more rows than are written at once


def small_csv(folder: Path, name: str = "small.csv", rows: int = 3) -> Path:
    path = folder / name
    path.write_text("id,v\n" + "".join(f"{n},{name}\n" for n in range(rows)))
    return path


def large_csv(folder: Path, name: str = "large.csv", rows: int = LARGE_ROWS) -> Path:
    """Rows that do not compress, and that no file of another name has."""
    path = folder / name
    numbers = random.Random(name)
    path.write_text("id,v\n" + "".join(f"{n},{numbers.randbytes(100).hex()}\n" for n in range(rows)))
    return path


def one_sentence(text: str) -> bool:
    return text.endswith(".") and not text.endswith("..") and "\n" not in text and "Error" not in text


class Disk:
    """A file system of its own, which can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Take all the space there is, but for ``leave`` bytes."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as ballast:
            while True:
                ballast.write(bytes(1 << 14))
        if leave:
            os.truncate(self._ballast, self._ballast.stat().st_size - leave)

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)


class Server:
    """A Postgres that can go away."""

    def __init__(self, home: Path, dsn: str) -> None:
        self.home = home
        self.dsn = dsn
        self._back: threading.Thread | None = None

    def stop(self) -> None:
        embedded.stop(self.home)

    def kill(self) -> None:
        """Stop it without a good-bye to anyone."""
        pid = embedded.status(self.home).pid
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        while embedded.status(self.home).running:
            time.sleep(0.02)

    def start(self) -> None:
        embedded.start(self.home)

    def start_soon(self) -> None:
        """Start it again in a moment."""

        def later() -> None:
            time.sleep(0.3)
            self.start()

        self._back = threading.Thread(target=later)
        self._back.start()

    def settle(self) -> None:
        """Wait until it is up."""
        if self._back is not None:
            self._back.join()
        self.start()
