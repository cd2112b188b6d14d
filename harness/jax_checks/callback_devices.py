"""Python callbacks in programs over several devices, with an order and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.callbacks import F32, like, noted
from harness.jax_checks.compared import Case, Devices, Told, compared, mesh, tell_all


@compared
def callbacks_over_devices(devices: Devices) -> Told:
    grid = mesh(devices)
    flat = Mesh(np.array(devices), ("d",))
    split = NamedSharding(flat, P("d"))
    x = jax.device_put(np.arange(8, dtype=F32), split)
    on_four = jax.device_put(np.arange(8, dtype=F32), NamedSharding(Mesh(devices[4:], "d"), P("d")))
    square = jax.device_put(
        np.arange(16, dtype=F32).reshape(4, 4), NamedSharding(grid, P("a", "b"))
    )

    def debugging(x: Any, **how: Any) -> Callable[[Any], Any]:
        def program(note: Any) -> Any:
            def f(x: Any) -> Any:
                jax.debug.callback(note, x, **how)
                return x * 2

            return jax.jit(f)(x)

        return program

    def mapped(note: Any, *, axes: Any = None) -> Any:
        def f(v: Any) -> Any:
            jax.debug.callback(note, v)
            return v + jax.lax.psum(v, "a")

        named: Any = {"axis_names": {"a"}} if axes else {}
        return jax.jit(jax.shard_map(f, mesh=grid, in_specs=P("a"), out_specs=P("a"), **named))(
            square
        )

    def pure_mapped(v: Any) -> Any:
        return jax.pure_callback(np.sin, like(v), v) + jax.lax.axis_index("d")

    def alternating(x: Any) -> Any:
        for _ in range(3):
            y = jax.pure_callback(lambda v: np.asarray(v) + 1, like(x), x)
            x = jax.lax.with_sharding_constraint(y, split) @ jnp.ones((8, 8)) + x.sum()
        return x

    def pure_on(device: int) -> Case:
        place = SingleDeviceSharding(devices[device])
        return lambda: jax.jit(lambda x: jax.pure_callback(np.cos, like(x), x, sharding=place) + x)(
            x
        )

    return tell_all(
        devices,
        {
            "whole": noted(debugging(x)),
            "on the second slice": noted(debugging(on_four)),
            "two axes": noted(debugging(square)),
            "partitioned": noted(debugging(x, partitioned=True)),
            "pure": lambda: jax.jit(lambda x: jax.pure_callback(np.sin, like(x), x) + x)(x),
            "pure on one": pure_on(3),
            "io": lambda: jax.jit(lambda x: io_callback(np.sin, like(x), x))(x),
            "shard_map": noted(mapped),
            "shard_map, one axis": noted(lambda note: mapped(note, axes=True)),
            "pure in shard_map": lambda: jax.jit(
                jax.shard_map(pure_mapped, mesh=flat, in_specs=P("d"), out_specs=P("d"))
            )(x),
            "with collectives": lambda: jax.jit(alternating)(x),
            "pmap": lambda: jax.pmap(
                lambda v: jax.pure_callback(np.sin, like(v), v), devices=devices
            )(np.arange(8, dtype=F32)),
        },
    )


@compared
def callbacks_in_order_over_devices(devices: Devices) -> Told:
    x = jax.device_put(
        np.arange(8, dtype=F32), NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))
    )

    def in_order(note: Any) -> Any:
        def f(x: Any) -> Any:
            jax.debug.callback(note, x, ordered=True)
            return io_callback(np.sin, like(x), x, ordered=True)

        program = jax.jit(f)
        return program(x), program(x + 1), program(x[4:])

    return tell_all(devices, {"in order": noted(in_order, ordered=True)})
