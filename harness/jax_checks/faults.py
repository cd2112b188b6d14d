"""Programs that some releases of JAX compute wrongly on CPUs, or crash on.

`api/faulty_jax.py` names the releases. `python -m harness.jax_checks.faults NAME` runs one on this
machine's CPU; a proxy runs them with the other checks.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np

from harness.jax_checks.basics import check


@check
def sums_of_many_rows() -> None:
    # The sum of the last row was wrong (jax issue 39103).
    rows = np.zeros((32_769, 3), np.float32)
    rows[:, 0] = np.arange(len(rows))

    @jax.jit
    def squares(rows: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: jnp.sum((jnp.eye(3, dtype=row.dtype) @ row) ** 2))(rows)

    np.testing.assert_array_equal(squares(rows), rows[:, 0] ** 2)


@check
def broadcasts_over_eight_dimensions() -> None:
    # The process crashed, or did not return (jax issue 39257).
    few = np.full((10, 4, 6, 1, 1, 1, 1, 1), 2, np.float32)
    many = np.ones((10, 4, 6, 9, 9, 9, 9, 9), np.float32)
    likelihood = jax.jit(lambda a, b: jnp.log(jnp.maximum(jnp.sum(a * b, axis=2), 0.5)))
    np.testing.assert_allclose(likelihood(few, many), np.log(12), rtol=1e-5)


@check
def products_over_seven_dimensions() -> None:
    # The process crashed (jax issue 40412).
    numbers = np.arange(3 * 2 * 2 * 8**3, dtype=np.float32).reshape(3, 1, 2, 2, 8, 8, 8) % 7
    product = jax.jit(lambda a, b: jnp.sum(a * b, axis=3))
    np.testing.assert_array_equal(product(numbers, numbers), (numbers**2).sum(axis=3))


FAULTS = {
    function.__name__: function
    for function in (
        sums_of_many_rows,
        broadcasts_over_eight_dimensions,
        products_over_seven_dimensions,
    )
}

if __name__ == "__main__":
    FAULTS[sys.argv[1]]()
