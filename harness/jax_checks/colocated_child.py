"""A process whose JAX runs on a proxy that runs colocated Python: `child` for checks of it."""

from __future__ import annotations

import sys

from harness.jax_checks.child import answer, attach


def main(address: str) -> None:
    attach(address)
    from harness.jax_checks.served_python import SERVED

    answer(lambda name: SERVED[name]())


if __name__ == "__main__":
    main(sys.argv[1])
