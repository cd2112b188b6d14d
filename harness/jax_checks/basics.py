"""What JAX programs do, each a function that asserts: run through a proxy by `child`.

There are two slices of four devices. The checks do not know of the proxy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(2, 4), ("slice", "x"))


def on(*axes: Any) -> NamedSharding:
    return NamedSharding(mesh(), P(*axes))


def fails(function: Callable[[], Any], *words: str) -> str:
    try:
        jax.block_until_ready(function())
    except Exception as error:  # noqa: BLE001 - its text is what is looked at
        text = str(error)
        assert all(word in text for word in words), text
        return text
    raise AssertionError("nothing was raised")


@check
def devices() -> None:
    assert jax.default_backend() == "proxy"
    assert [d.slice_index for d in jax.devices()] == [0] * 4 + [1] * 4
    assert [tuple(d.coords) for d in jax.devices()[4:]] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 0),
        (1, 1, 0),
    ]
    assert {d.device_kind for d in jax.devices()} == {"TPU v6 lite"}
    assert {d.core_on_chip for d in jax.devices()} == {0}
    assert {d.virtual_task_index for d in jax.devices()} == {0}
    # As JAX names its own CPUs; checkpoints name devices by it.
    assert [str(d) for d in jax.devices()] == [f"cpu:{d.id}" for d in jax.devices()]
    assert repr(jax.devices()[6]) == "cpu:6 (slice 1, chip (0, 1, 0))"


@check
def hybrid_mesh() -> None:
    from jax.experimental import mesh_utils

    made = mesh_utils.create_hybrid_device_mesh((1, 4), (2, 1))
    assert [[d.slice_index for d in row] for row in made] == [[0] * 4, [1] * 4]


@check
def sharded_jit() -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    product = jax.jit(lambda a: a @ a.T, out_shardings=on("slice", "x"))
    np.testing.assert_allclose(product(jax.device_put(x, on("slice", "x"))), x @ x.T)


@check
def gradients_across_slices() -> None:
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    w = jax.device_put(np.ones((4, 2), np.float32), on())
    loss = jax.jit(jax.value_and_grad(lambda w, x: jnp.sum((x @ w) ** 2)))
    value, gradient = loss(w, jax.device_put(x, on(("slice", "x"))))
    np.testing.assert_allclose(value, np.sum((x @ np.ones((4, 2))) ** 2), rtol=1e-5)
    np.testing.assert_allclose(gradient, 2 * x.T @ (x @ np.ones((4, 2))), rtol=1e-4)


@check
def pmap() -> None:
    total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(np.arange(8.0))
    np.testing.assert_array_equal(total, [28.0] * 8)


@check
def shard_map() -> None:
    total = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.psum(x, ("slice", "x")),
            mesh=mesh(),
            in_specs=P(("slice", "x")),
            out_specs=P(),
        )
    )
    assert total(np.arange(8.0))[0] == 28
    shifted = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)]),
            mesh=mesh(),
            in_specs=P("x"),
            out_specs=P("x"),
        )
    )
    np.testing.assert_array_equal(shifted(np.arange(4.0)), [3, 0, 1, 2])


@check
def donation() -> None:
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    for sharding in (None, on("slice", "x")):
        x = jax.device_put(np.zeros((8, 8), np.float32), sharding)
        before = np.asarray(x)
        y = step(x)
        assert x.is_deleted()
        fails(functools.partial(np.asarray, x), "deleted")
        assert before.sum() == 0
        for _ in range(20):
            y = step(y)
        assert np.asarray(y).sum() == 21 * 64


@check
def zero_sizes() -> None:
    empty = jnp.zeros((0, 3))
    assert np.asarray(empty).shape == (0, 3)
    assert float(jax.jit(jnp.sum)(empty)) == 0
    split = jax.device_put(np.zeros((8, 0), np.float32), on(("slice", "x")))
    assert np.asarray(split).shape == (8, 0)


@check
def uneven_shapes_are_refused() -> None:
    fails(lambda: jax.device_put(np.ones(7), on("x")), "evenly divide")


@check
def moves_between_shardings() -> None:
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    x = jax.device_put(values, on("slice", "x"))
    one_slice = [Mesh(np.array(jax.devices()[a : a + 4]), ("x",)) for a in (0, 4)]
    backwards = Mesh(np.array(jax.devices())[::-1].reshape(2, 4), ("slice", "x"))
    targets: list[Any] = [on("x", "slice"), on(), on(None, "x"), on(("x", "slice"))]
    targets += [NamedSharding(m, P("x")) for m in one_slice]
    targets += [NamedSharding(backwards, P("slice", "x")), jax.devices()[3], jax.devices()[6]]
    for target in targets:
        moved = jax.device_put(x, target)
        np.testing.assert_array_equal(moved, values)
        np.testing.assert_array_equal(jax.device_put(moved, on("slice", "x")), values)
        np.testing.assert_array_equal(jax.jit(lambda a: a + 1)(moved), values + 1)


@check
def strided_and_overlapping_sources() -> None:
    cube = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    sources = [
        cube.transpose(2, 0, 1),
        cube[:, ::2],
        np.asfortranarray(cube[0]),
    ]
    for source in sources:
        np.testing.assert_array_equal(jax.device_put(source), source)


@check
def arrays_of_pieces() -> None:
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    made = jax.make_array_from_callback((8, 8), on("slice", "x"), lambda index: values[index])
    np.testing.assert_array_equal(made, values)
    again = jax.make_array_from_single_device_arrays(
        (8, 8), made.sharding, [shard.data for shard in made.addressable_shards]
    )
    np.testing.assert_array_equal(again, values)
    made.delete()
    assert made.is_deleted()
    np.testing.assert_array_equal(again, values)


@check
def megabytes() -> None:
    values = np.random.default_rng(0).integers(0, 1 << 30, 3_000_001, dtype=np.int32)
    np.testing.assert_array_equal(jax.device_put(values), values)
    split = jax.device_put(values[:3_000_000], on(("slice", "x")))
    np.testing.assert_array_equal(split, values[:3_000_000])


@check
def linear_algebra() -> None:
    a = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    a = a @ a.T + np.eye(6, dtype=np.float32)
    lower = jnp.linalg.cholesky(a)
    np.testing.assert_allclose(lower @ lower.T, a, atol=1e-3)
    u, s, v = jnp.linalg.svd(a)
    np.testing.assert_allclose(u * s @ v, a, atol=1e-3)
    values, vectors = jnp.linalg.eigh(a)
    np.testing.assert_allclose(a @ vectors, vectors * values, atol=1e-2)
    np.testing.assert_allclose(a @ jnp.linalg.solve(a, a[0]), a[0], atol=1e-2)
    q, r = jnp.linalg.qr(a)
    np.testing.assert_allclose(q @ r, a, atol=1e-3)


@check
def ahead_of_time() -> None:
    compiled: Any = jax.jit(lambda x: x @ x).lower(jnp.ones((64, 64))).compile()
    assert compiled.cost_analysis()["flops"] >= 2 * 64**3
    assert compiled.memory_analysis().output_size_in_bytes == 64 * 64 * 4
    assert "HloModule" in compiled.as_text()
    assert compiled(jnp.ones((64, 64)))[0, 0] == 64
    ((layout,), _) = compiled.input_formats
    assert layout.layout.major_to_minor == (0, 1)


@check
def control_flow() -> None:
    assert int(jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda _, c: c + 2, 0))(1000)) == 2000
    carry, out = jax.jit(lambda x: jax.lax.scan(lambda c, y: (c + y, c), 0.0, x))(jnp.ones(5))
    assert float(carry) == 5
    np.testing.assert_array_equal(out, np.arange(5))


@check
def many_in_flight() -> None:
    step = jax.jit(lambda x: x + 1)
    x = jax.device_put(np.zeros(8, np.float32), on(("slice", "x")))
    single = jnp.zeros(())
    for _ in range(300):
        x, single = step(x), step(single)
    assert float(single) == 300
    np.testing.assert_array_equal(x, [300.0] * 8)


@check
def errors_are_the_programs_own() -> None:
    fails(lambda: jax.jit(lambda x: x, compiler_options={"nope": "1"})(1.0), "nope")
    assert float(jax.jit(lambda x: x * 2)(4.0)) == 8


@check
def options_that_end_xlas_process_are_switched_off() -> None:
    # (On the CPU the first of them ends this process.)
    for change in ("noop_change", "silent_hlo_change"):
        options = {f"xla_unsupported_crash_on_hlo_pass_{change}": True}
        assert float(jax.jit(lambda x: x * 2, compiler_options=options)(4.0)) == 8


@check
def threads() -> None:
    from concurrent import futures

    def work(n: int) -> float:
        x = jnp.full((16,), float(n))
        for _ in range(10):
            x = jax.jit(lambda a: a + 1)(x)
        return float(x.sum())

    with futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [16.0 * (n + 10) for n in range(16)]


@check
def an_array_that_is_still_to_be_reduced() -> None:
    axes = Mesh(np.array(jax.devices()), ("x",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(axes):
        parts = jax.device_put(jnp.arange(8.0), P("x"))
        total = jax.lax.reduce_sum(parts, [0], out_sharding=P(unreduced={"x"}))
        assert "nreduced" in str(total.sharding)
        assert jax.sharding.reshard(total, P()).tolist() == 28.0


@check
def a_step_with_thousands_of_host_buffers() -> None:
    # gRPC refuses calls by itself when many wait, and the client takes that for the session's end.
    arrays = [np.full(8, number, np.float32) for number in range(500)]
    total = jax.jit(lambda *terms: sum(terms), in_shardings=on(("slice", "x")))(*arrays)
    assert total.tolist() == [500 * 499 / 2] * 8
