"""Libraries through a proxy: each function of `…_checks.py` tells what it tells on the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.jax_checks.parent import RunCheck, child_on_a_proxy
from harness.layers.thorough import thorough

#: Found without the libraries: they take seconds to load, and here nobody needs them.
COMPARED = [
    f"{path.stem} {name}"
    for path in sorted(Path(__file__).parent.glob("*_checks.py"))
    for name in re.findall(r"^@compared\ndef (\w+)", path.read_text(), re.MULTILINE)
]


@pytest.fixture(scope="module")
def run_check() -> Iterator[RunCheck]:
    """One proxy and one JAX process for all checks of this file."""
    with child_on_a_proxy("tests.e2e.libraries.child") as run:
        yield run


#: The older of flax's interfaces.
OLDER = "flax_checks linen"


@pytest.mark.parametrize("check", [*(c for c in COMPARED if c != OLDER), *thorough(OLDER)])
def test_as_on_the_cpu(run_check: RunCheck, check: str) -> None:
    failure = run_check(check)
    assert not failure, failure
