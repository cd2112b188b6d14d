"""Programs, quick and not. As a script: writes each as StableHLO, in a process with a backend.

(JAX warns of every fork of a process that has one; the tests' own processes fork.)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Sample(NamedTuple):
    """A program of one array of 32-bit floats, and whether it is quick."""

    function: Callable[..., Any]
    shape: tuple[int, ...]
    quick: bool


def _many(x: Any) -> Any:
    for i in range(100):
        x = x * i
    return x


def _nested(x: Any) -> Any:
    inner = jax.jit(lambda x: x + 1)
    return jax.jit(lambda x: inner(x) + inner(x + 1))(x)


def _repeated(x: Any) -> Any:
    inner = jax.jit(lambda x: x * 2 + 1)
    for _ in range(20):
        x = inner(x)
    return x


SAMPLES: Mapping[str, Sample] = {
    "scalar": Sample(lambda x: x + 1, (), True),
    "sum": Sample(lambda x: x.sum(), (8, 8), True),
    "where": Sample(lambda x: jnp.where(x > 0, x, 1.0), (8,), True),
    "views": Sample(lambda x: (x[2:3], x.T.reshape(-1)), (8, 2), True),
    "large": Sample(lambda x: x + 1, (200, 200), False),
    "large argument": Sample(lambda x: x[:1], (200, 200), False),
    "loop": Sample(lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c + 1, x), (8,), False),
    "while": Sample(
        lambda x: jax.lax.while_loop(lambda c: c.sum() < 1, lambda c: c, x), (8,), False
    ),
    "branch": Sample(lambda x: jax.lax.cond(x.sum() > 1, jnp.sin, jnp.cos, x), (8,), False),
    "library": Sample(jnp.linalg.cholesky, (8, 8), False),
    "product": Sample(lambda x: x @ x, (8, 8), False),
    "sort": Sample(jnp.sort, (8,), False),
    "many": Sample(_many, (8,), False),
    "nested calls": Sample(_nested, (8,), False),
    "repeated calls": Sample(_repeated, (8,), False),
}


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    texts = {}
    for name, sample in SAMPLES.items():
        lowered = jax.jit(sample.function).lower(np.zeros(sample.shape, np.float32))
        texts[name] = str(lowered.compiler_ir("stablehlo"))
    sys.stdout.write(json.dumps(texts))


if __name__ == "__main__":
    main()
