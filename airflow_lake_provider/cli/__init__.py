"""The ``lake`` command: everything that can be done without a scheduler."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from airflow_lake_provider import __version__
from airflow_lake_provider.errors import LakeError


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from airflow_lake_provider.cli import datasets, files, reading, services, tables, work

    top = argparse.ArgumentParser(
        prog="lake",
        description="CSV files into Iceberg tables (bronze, silver, gold).",
        epilog="Settings come from LAKE_… environment variables, see docs/settings.md.",
    )
    top.add_argument("--version", action="version", version=f"lake {__version__}")
    top.add_argument("-v", "--verbose", action="store_true", help="show the log of what is done")
    commands = top.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for module in (files, datasets, tables, work, reading, services):
        module.register(commands)
    return top


class _Terminated(BaseException):
    """SIGTERM. Like an interrupt it is no Exception: what deals with errors lets it pass, what cleans up does so, and
    claimed files are handed back on the way out."""


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: handing back is not to be interrupted
    raise _Terminated


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 not done (with one sentence why), 2 wrong usage."""
    # The libraries that are imported make hundreds of thousands of objects that stay; to look through them again and
    # again would take a quarter of the time of a short command.
    gc.set_threshold(200_000, *gc.get_threshold()[1:])
    arguments = parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO if arguments.verbose else logging.ERROR,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        return int(arguments.run(arguments))
    except LakeError as error:
        print(f"lake: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, _Terminated) as error:
        print("lake: stopped; what was not finished goes on with the next command.", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 128 + signal.SIGTERM
    except BrokenPipeError:
        # The reader of our output has gone (`lake show … | head`); nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
