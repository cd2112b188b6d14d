"""A process with twelve CPU devices: runs the checks of checkpoints that it is asked for."""

from __future__ import annotations

import os
import sys
import tempfile

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=12")
os.environ["JAX_PLATFORMS"] = "cpu"

from harness.jax_checks.child import answer
from tests.elastic.checkpoints.checks_all import CHECKS


def run(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="sps-") as directory:
        CHECKS[name](directory)


if __name__ == "__main__":
    assert not sys.argv[1:]
    answer(run)
