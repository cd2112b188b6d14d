"""A process with twelve CPU devices, three slices of four: runs the checks that it is asked for."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from harness.elastic.cpu_devices import use_cpu_devices
from harness.jax_checks.child import answer
from tests.elastic.checks_all import MODULES
from tests.elastic.gate import patience
from tests.elastic.registry import CHECKS

# After the last import, which sets another number.
use_cpu_devices(12)


def run(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="sps-") as directory, patience():
        CHECKS[name](Path(directory))


if __name__ == "__main__":
    assert MODULES
    assert not sys.argv[1:]
    answer(run)
