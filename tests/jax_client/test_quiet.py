"""What JAX's client writes to standard error while a proxy serves this process."""

from __future__ import annotations

import pytest

from tests.jax_client.conftest import PRELUDE, Proxies, run_program

REFUSED = (
    PRELUDE
    + """
import jax, jax.numpy as jnp
from jaxlib import utils
levels, set_level = [], utils.absl_set_min_log_level
utils.absl_set_min_log_level = lambda level: (levels.append(level), set_level(level))
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))

calling = jax.ffi.ffi_call("not_registered", jax.ShapeDtypeStruct((4,), jnp.float32))
try:
    jax.block_until_ready(jax.jit(calling)(jnp.ones(4)))
except jax.errors.JaxRuntimeError as error:
    assert "custom call 'not_registered'" in str(error), error
else:
    raise AssertionError("is not refused")
while_attached = levels[-1]
attachment.detach()
print(while_attached, levels[-1])
"""
)


@pytest.mark.parametrize(
    ("env", "warns", "levels"),
    [
        ({}, False, "2 1"),
        ({"JAX_LOGGING_LEVEL": "WARNING"}, True, "1 1"),
        ({"TF_CPP_MIN_LOG_LEVEL": "0"}, True, "0 0"),
        ({"TF_CPP_MIN_LOG_LEVEL": "3"}, False, "3 3"),
    ],
    ids=["by default", "warnings", "everything", "nothing"],
)
def test_a_refused_request_is_an_error_and_no_warning_beside_it_unless_asked_for(
    proxies: Proxies, env: dict[str, str | None], warns: bool, levels: str
) -> None:
    done = run_program(REFUSED, proxies[0].address, env=env)
    assert ("compile: UNIMPLEMENTED" in done.stderr) == warns, done.stderr
    assert done.stdout.split("\n")[-2] == levels
    assert warns or not done.stderr
