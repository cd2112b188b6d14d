"""Hypothesis: short by default, long with SPS_HYPOTHESIS_PROFILE=long.

It keeps no examples. What it reads in the modules under test is kept in the cache directory: that
takes six seconds of each process otherwise.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, configuration, settings

from shared_pathways_service.runtime.settings import Settings

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

configuration.set_hypothesis_home_dir(Settings.load().cache_dir / "hypothesis")
