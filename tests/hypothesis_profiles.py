"""Hypothesis: short by default, long with SPS_HYPOTHESIS_PROFILE=long; no file is left behind."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, Phase, configuration, settings

_PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
settings.register_profile(
    "quick",
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=_PHASES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long", settings.get_profile("quick"), derandomize=False, max_examples=4000
)
settings.load_profile(os.environ.get("SPS_HYPOTHESIS_PROFILE", "quick"))

_home = tempfile.mkdtemp(prefix="sps-hypothesis-")
configuration.set_hypothesis_home_dir(_home)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_home, ignore_errors=True)
