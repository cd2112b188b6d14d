"""A process whose JAX runs on a proxy and on the CPU: compares what libraries do on both.

Reads lines `MODULE FUNCTION`, answers as `harness.jax_checks.child` does.
"""

from __future__ import annotations

import importlib
import sys

from harness.jax_checks.child import answer, attach
from tests.e2e.libraries.comparing import compare


def run(line: str) -> None:
    module, name = line.split()
    importlib.import_module(f"tests.e2e.libraries.{module}")
    compare(name)


if __name__ == "__main__":
    attach(sys.argv[1])
    answer(run)
