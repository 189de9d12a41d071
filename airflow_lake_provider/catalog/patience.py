"""Sitting out the outages of a catalog."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from airflow_lake_provider.errors import CatalogUnavailable


class Patient(Protocol):
    """A catalog whose questions are asked again for a while."""

    patience_seconds: float

    def outage(self, error: Exception) -> str | None:
        """What went wrong, in a word, where trying again may help; None for every other error."""


P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Patient)


def patient(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Repeat an operation that changes nothing, or the same thing, while the catalog is away.

    Raises CatalogUnavailable where it stays away for longer than its ``patience_seconds``.
    """

    @functools.wraps(method)
    def repeated(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        deadline = time.monotonic() + self.patience_seconds
        pause = 0.1
        while True:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                what = self.outage(error)
                if what is None:
                    raise
                if time.monotonic() + pause > deadline:
                    raise CatalogUnavailable(
                        f"The Iceberg catalog could not be reached for {self.patience_seconds:.0f} s ({what}); nothing "
                        "was changed, try again when it is up."
                    ) from error
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    return repeated


def lost_commit(identifier: tuple[str, ...], what: Any) -> CatalogUnavailable:
    """The error for a commit of unknown outcome."""
    return CatalogUnavailable(
        f"The connection to the Iceberg catalog broke while table {'.'.join(identifier)} was committed ({what}); "
        "whether it took place is looked up before anything is repeated."
    )
