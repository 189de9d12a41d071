"""How hard hypothesis tries: little at a desk, more in CI, and always the same in CI."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def load() -> None:
    """Register the profiles and load the one that fits; HYPOTHESIS_PROFILE names another."""
    # Real files and databases take their time, and what is slow says nothing about what is right.
    lenient = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=lenient)
    settings.register_profile(
        "ci", max_examples=200, deadline=None, derandomize=True, print_blob=True, suppress_health_check=lenient
    )
    settings.register_profile("soak", max_examples=5000, deadline=None, suppress_health_check=lenient)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
