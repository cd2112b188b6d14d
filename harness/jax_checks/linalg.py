"""Linear algebra and other functions that JAX lowers to custom calls: as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax.experimental import sparse
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.compared import Devices, Told, compared, mesh, tell_all

_lax: Any = jax.lax.linalg
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cholesky": jnp.linalg.cholesky,
    "cho_solve": lambda x: jsl.cho_solve((jsl.cho_factor(x)[0], False), x),
    "eigh": jnp.linalg.eigh,
    "eigvalsh": jnp.linalg.eigvalsh,
    "eig": jnp.linalg.eig,
    "eigvals": jnp.linalg.eigvals,
    "svd": jnp.linalg.svd,
    "small svd": lambda x: jnp.linalg.svd(x[..., :2], full_matrices=False),
    "singular values": jnp.linalg.svdvals,
    "svd by QR": lambda x: _lax.svd(x[..., :2, :], algorithm=_lax.SvdAlgorithm.QR),
    "qr": jnp.linalg.qr,
    "complete qr": lambda x: jnp.linalg.qr(x[..., :2], mode="complete"),
    "pivoting qr": lambda x: _lax.qr(x, pivoting=True),
    "lu": _lax.lu,
    "solve": lambda x: jnp.linalg.solve(x, x),
    "inv": jnp.linalg.inv,
    "det": jnp.linalg.det,
    "slogdet": jnp.linalg.slogdet,
    "pinv": jnp.linalg.pinv,
    "matrix_rank": jnp.linalg.matrix_rank,
    "cond": jnp.linalg.cond,
    "triangular": lambda x: jsl.solve_triangular(x, x[..., :2], trans=2, unit_diagonal=True),
    "triangular right": lambda x: _lax.triangular_solve(x, x[..., :2, :], left_side=False),
    "schur": _lax.schur,
    "hessenberg": _lax.hessenberg,
    "tridiagonal": _lax.tridiagonal,
    "tridiagonal_solve": lambda x: _lax.tridiagonal_solve(x[..., 0], x[..., 0], x[..., 0], x),
    "householder": lambda x: _lax.householder_product(x, x[..., 0]),
    "norm": lambda x: jnp.linalg.norm(x, ord="nuc", axis=(-2, -1)),
    "fft": jnp.fft.fftn,
}


def _matrices(dtype: Any, *batch: int) -> np.ndarray:
    """Returns positive definite matrices."""
    draw = np.random.default_rng(1)
    half = draw.standard_normal((*batch, 4, 4))
    if np.issubdtype(dtype, np.complexfloating):
        half = half + 1j * draw.standard_normal((*batch, 4, 4))
    whole = half @ np.conj(np.swapaxes(half, -1, -2)) + 4 * np.eye(4)
    return np.asarray(whole, dtype)


@compared
def linear_algebra_of_every_type(devices: Devices) -> Told:
    split = NamedSharding(mesh(devices), P("a"))
    told: Told = {}
    with jax.enable_x64(True):
        for dtype in (np.float32, np.float64, np.complex64, np.complex128):
            # (What a batch changes does not depend on the precision. Each program takes seconds.)
            batches = ((), (2,), (0,)) if dtype in (np.float32, np.complex64) else ((2,),)
            for batch in batches:
                x = _matrices(dtype, *batch)
                functions = jax.jit(lambda x: {n: f(x) for n, f in _FUNCTIONS.items()})
                whole = jax.device_put(x, devices[0])
                told |= tell_all(devices, {(np.dtype(dtype).name, batch): _run(functions, whole)})
        halves = jax.device_put(_matrices(np.float32, 4), split)
        functions = jax.jit(lambda x: {n: _FUNCTIONS[n](x) for n in ("eigh", "qr", "lu", "solve")})
        told |= tell_all(devices, {"split": _run(functions, halves)})
    return _without_errors(told)


def _run(function: Any, x: Any) -> Callable[[], Any]:
    return lambda: function(x)


@compared
def functions_of_custom_calls(devices: Devices) -> Told:
    x = jax.device_put(np.arange(32, dtype=np.float32).reshape(4, 8) % 7, devices[0])
    plain = NamedSharding(mesh(devices), P("a", "b"))

    def times(kind: Any) -> Callable[[], Any]:
        matrix = kind.fromdense(jnp.asarray(np.eye(4, 5, dtype=np.float32)))
        return lambda: jax.jit(lambda m, y: (m @ y, m @ y[:, 0]))(matrix, x[:, :5].T)

    def mapped(y: Any) -> Any:
        return jnp.linalg.cholesky(y @ y.T + 4 * jnp.eye(2)) + jax.lax.psum(y.sum(), "a")

    over_a = jax.shard_map(mapped, mesh=mesh(devices), in_specs=P("a"), out_specs=P("a"))
    cases: dict[Any, Callable[[], Any]] = {
        "top_k": lambda: jax.jit(lambda y: jax.lax.top_k(y, 3))(x),
        "approx_max_k": lambda: jax.jit(lambda y: jax.lax.approx_max_k(y, 3))(x),
        "approx_min_k": lambda: jax.jit(lambda y: jax.lax.approx_min_k(y, 3))(x),
        "sort": lambda: jax.jit(jnp.sort)(x),
        "layout": lambda: jax.jit(lambda y: with_layout_constraint(y, Layout((0, 1))) + 1)(x),
        "BCOO": times(sparse.BCOO),
        "BCSR": times(sparse.BCSR),
        "CSR": times(sparse.CSR),
        "constraint": lambda: jax.jit(lambda y: jax.lax.with_sharding_constraint(y, plain) * 2)(
            jax.device_put(np.ones((4, 8), np.float32), plain)
        ),
        "shard_map": lambda: jax.jit(over_a)(
            jax.device_put(np.ones((4, 8), np.float32), NamedSharding(mesh(devices), P("a")))
        ),
        "erf and others": lambda: jax.jit(
            lambda y: [
                f(y / 8) for f in (jax.lax.erf, jax.lax.erf_inv, jnp.tan, jnp.arcsinh, jnp.arctanh)
            ]
        )(x),
    }
    return _without_errors(tell_all(devices, cases))


def _without_errors(told: Told) -> Told:
    failed = {
        case: what
        for case, what in told.items()
        if isinstance(what, tuple) and isinstance(what[1], str)
    }
    assert not failed, failed
    return told
