"""Where arrays lie, and how: the same as on the CPU."""

from __future__ import annotations

import functools
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.compared import (
    CPU_IS_WRONG,
    JAX_RELEASE,
    Case,
    Devices,
    Told,
    compared,
    mesh,
    tell,
    tell_all,
    under,
)

MEMORIES = ("device", "pinned_host", "unpinned_host")


def shardings(devices: Devices) -> dict[str, Any]:
    found: dict[str, Any] = {f"device {i}": SingleDeviceSharding(devices[i]) for i in (0, 3, 7)}
    orders = {"": range(8), "backwards": range(7, -1, -1), "mixed": [i * 3 % 8 for i in range(8)]}
    for name, order in orders.items():
        for count in (1, 2, 4, 8):
            row = np.array(devices)[list(order)[:count]]
            found[f"{count} {name}"] = NamedSharding(Mesh(row, ("x",)), P("x"))
            if count < 4:
                continue
            square = Mesh(row.reshape(2, -1), ("x", "y"))
            for spec in (P(), P("x", "y"), P("y"), P(None, ("y", "x"))):
                found[f"{count} {name} {spec}"] = NamedSharding(square, spec)
    return found


@compared
def moves_between_any_two_shardings(devices: Devices) -> Told:
    places = shardings(devices)
    walk = random.Random(5).choices(list(places), k=60)
    values = np.arange(64, dtype=np.int16).reshape(8, 8)
    array: Any = values

    def step(name: str) -> Any:
        nonlocal array
        array = jax.device_put(array, places[name])
        pieces = {s.device.id: (s.index, np.asarray(s.data)) for s in array.addressable_shards}
        wrong = [
            i for i, (index, data) in pieces.items() if not np.array_equal(data, values[index])
        ]
        return array.sharding == places[name], sorted(pieces), wrong, np.array_equal(array, values)

    return {
        number: tell(devices, functools.partial(step, name)) for number, name in enumerate(walk)
    }


@compared
def uneven_and_mixed_shardings(devices: Devices) -> Told:
    values = np.arange(56, dtype=np.float32).reshape(7, 8)

    def of(count: int, spec: P) -> dict[str, Case]:
        at = NamedSharding(Mesh(np.array(devices[:count]), ("x",)), spec)
        constrained = jax.jit(lambda x: jax.lax.with_sharding_constraint(x + 1, at))
        return {
            "put": lambda: jax.device_put(values, at),
            "out": lambda: jax.jit(jnp.sin, out_shardings=at)(values),
            "in": lambda: jax.jit(jnp.sin, in_shardings=at)(values),
            "constraint": lambda: constrained(values),
        }

    cases: dict[Any, Case] = {}
    for count in (4, 8):
        for spec in (P("x"), P(None, "x")):
            cases |= under((count, spec), of(count, spec))
    rows = (devices[:4], devices[4:], devices[3::-1])
    halves = [NamedSharding(Mesh(np.array(row), ("x",)), P(None, "x")) for row in rows]
    first, second, backwards = (jax.device_put(values, half) for half in halves)
    add = jax.jit(lambda a, b: a + b)
    cases |= {
        "two meshes": lambda: add(first, second),
        "two orders": lambda: add(first, backwards),
        "two devices": lambda: add(*(jax.device_put(values, d) for d in devices[1:3])),
    }
    return tell_all(devices, cases)


@compared
def memory_kinds(devices: Devices) -> Told:
    values = np.arange(16, dtype=np.float32).reshape(8, 2)
    one = SingleDeviceSharding(devices[3])
    split = NamedSharding(mesh(devices), P("b"))

    def kinds(array: Any) -> Any:
        piece = array.addressable_data(0)
        return array, array.sharding.memory_kind, piece.sharding.memory_kind

    def alone(here: Any) -> dict[str, Case]:
        def ahead_of_time() -> Any:
            compiled = jax.jit(lambda x: x + 1, out_shardings=here).lower(values).compile()
            runtime: Any = compiled.runtime_executable()
            return compiled.output_shardings.memory_kind, runtime.get_output_memory_kinds()

        add = jax.jit(lambda x: x + 1, in_shardings=here)
        return {
            "in": lambda: kinds(add(jax.device_put(values, here))),
            "ahead of time": ahead_of_time,
        }

    def between(here: Any, there: Any) -> dict[str, Case]:
        double = jax.jit(lambda x: jax.device_put(x * 2, there), out_shardings=there)
        return {
            "put": lambda: kinds(jax.device_put(jax.device_put(values, here), there)),
            "jit": lambda: kinds(double(jax.device_put(values, here))),
        }

    cases: dict[Any, Case] = {
        "there": lambda: [[m.kind for m in d.addressable_memories()] for d in devices],
        "default": lambda: devices[7].default_memory().kind,
        "none": lambda: SingleDeviceSharding(devices[0], memory_kind="disk"),
    }
    for name, place in (("one", one), ("split", split)):
        places = {kind: place.with_memory_kind(kind) for kind in MEMORIES}
        for kind, here in places.items():
            cases |= under((name, kind), alone(here))
            for other, there in places.items():
                cases |= under((name, kind, other), between(here, there))
    return tell_all(devices, cases)


if JAX_RELEASE < (0, 10):
    # The CPU copies the bytes of a turned array and leaves out how they are turned.
    CPU_IS_WRONG["layouts"] = {("backwards", "moved"), ("turned", "moved")}


@compared
def layouts(devices: Devices) -> Told:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    other = Format(Layout((0, 2, 1)), SingleDeviceSharding(devices[6]))

    def told(array: Any) -> Any:
        return array, array.format.layout.major_to_minor

    def of(order: tuple[int, ...]) -> dict[str, Case]:
        at = Format(Layout(order), SingleDeviceSharding(devices[1]))
        turned = jax.jit(lambda x: x + 1, out_shardings=at)
        again = jax.jit(lambda x: x * 2, in_shardings=at, out_shardings=at, donate_argnums=0)
        wrong = jax.jit(lambda x: x, in_shardings=other)
        return {
            "put": lambda: told(jax.device_put(values, at)),
            "out": lambda: told(turned(values)),
            "on": lambda: told(jax.jit(lambda x: x * 2)(turned(values))),
            "in": lambda: told(again(turned(values))),
            "wrong": lambda: wrong(turned(values)),
            "moved": lambda: told(jax.device_put(turned(values), devices[6])),
            "turned": lambda: told(jax.device_put(turned(values), other)),
        }

    def pieces() -> Any:
        at = Format(Layout((1, 0)), NamedSharding(mesh(devices), P("a", "b")))
        square = np.arange(64, dtype=np.float32).reshape(8, 8)
        array = jax.jit(lambda x: x @ x, out_shardings=at)(square)
        moved = jax.device_put(array, NamedSharding(mesh(devices), P("b", "a")))
        return told(array), told(array.addressable_data(1)), told(moved)

    def left_to_xla() -> Any:
        auto, shape = Format(Layout.AUTO), jax.ShapeDtypeStruct((8, 4), np.float32)
        multiply = jax.jit(lambda x, y: x @ y.T, in_shardings=auto, out_shardings=auto)
        compiled: Any = multiply.lower(shape, shape).compile()
        inputs = [f.layout.major_to_minor for f in compiled.input_formats[0]]
        return inputs, compiled.output_formats.layout.major_to_minor

    def packed() -> Any:
        shape = jax.ShapeDtypeStruct((4, 6), jnp.int4)
        compiled: Any = jax.jit(lambda x: x.T).lower(shape).compile()
        return [str(f.layout) for f in (compiled.input_formats[0][0], compiled.output_formats)]

    return tell_all(
        devices,
        {
            **under("backwards", of((2, 1, 0))),
            **under("turned", of((1, 0, 2))),
            "pieces": pieces,
            "left to XLA": left_to_xla,
            "packed": packed,
        },
    )


@compared
def abstract_meshes(devices: Devices) -> Told:
    """Of more devices than the program has."""
    abstract = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    values = np.arange(8, dtype=np.float32)

    def constrained(place: Any) -> Any:
        with jax.sharding.use_abstract_mesh(abstract):
            return jax.jit(lambda x: jax.lax.with_sharding_constraint(x, P("x")) * 2)(
                jax.device_put(values, place)
            )

    one, two = devices[1], NamedSharding(Mesh(np.array(devices[:2]), ("y",)), P("y"))
    found = tell_all(devices, {"one device": lambda: constrained(one)})
    # (XLA and a proxy refuse it in words of their own.)
    return {**found, "two devices": isinstance(tell(devices, lambda: constrained(two)), tuple)}
