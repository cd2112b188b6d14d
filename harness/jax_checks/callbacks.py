"""Python callbacks inside programs: their arguments and their effects."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.experimental import checkify, io_callback

from harness.jax_checks.compared import Case, Devices, Told, compared, tell_all

F32 = np.float32
Seen = list[Any]


def like(x: Any, dtype: Any = None) -> Any:
    return jax.ShapeDtypeStruct(np.shape(x), dtype or x.dtype)


def plain(x: Any) -> Any:
    found = np.asarray(x)
    return str(found.dtype), found.shape, found.tobytes()


def noted(program: Callable[[Callable[..., None]], Any], *, ordered: bool = False) -> Case:
    """Returns a case with a program's result and the arguments of its callback."""

    def run() -> Any:
        seen: Seen = []
        result = jax.block_until_ready(program(lambda *xs: seen.append([plain(x) for x in xs])))
        jax.effects_barrier()
        return result, seen if ordered else sorted(seen)

    return run


def printed(function: Callable[..., Any], *arguments: Any) -> Case:
    def run() -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            jax.block_until_ready(function(*arguments))
            jax.effects_barrier()
        return sorted(out.getvalue().splitlines())

    return run


@compared
def callbacks_of_each_kind(devices: Devices) -> Told:  # noqa: C901 - many small programs
    x = jax.device_put(jnp.arange(4, dtype=F32), devices[1])

    def twice(v: Any) -> np.ndarray:
        return np.asarray(v) * 2

    def debugging(note: Any) -> Any:
        def f(x: Any) -> Any:
            jax.debug.callback(note, x)
            return x + 1

        return jax.jit(f)(x)

    def in_order(note: Any) -> Any:
        def f(x: Any) -> Any:
            for i in range(3):
                jax.debug.callback(note, x + i, ordered=True)
            return x.sum()

        return [jax.jit(f)(x), jax.jit(f)(x + 5)]

    def without_arguments(note: Any) -> Any:
        def f() -> Any:
            jax.debug.callback(note)
            return io_callback(lambda: np.float32(7), like(F32(0)))

        return jax.jit(f)()

    def tree(x: Any) -> Any:
        shapes = {"a": like(x), "b": (like(x, np.int32), like(F32(0)))}
        return jax.pure_callback(
            lambda t: {"a": t["v"][0], "b": (np.asarray(t["v"][1], np.int32), F32(3))},
            shapes,
            {"v": (x, x + 1)},
        )

    def printing(x: Any) -> Any:
        jax.debug.print("x is {x}, {{literally}} {y:.2f}", x=x, y=x[1])
        jax.debug.print("and {}", x.sum(), ordered=True)
        return x

    def both(x: Any) -> Any:
        y = io_callback(twice, like(x), x, ordered=True)
        return io_callback(lambda v, w: v + w, like(x), x, y, ordered=True)

    return tell_all(
        devices,
        {
            "debug": noted(debugging),
            "ordered": noted(in_order, ordered=True),
            "no arguments": noted(without_arguments),
            "print": printed(jax.jit(printing), x),
            "pure": lambda: jax.jit(lambda x: jax.pure_callback(twice, like(x), x) + 1)(x),
            "pure, again": lambda: jax.jit(lambda x: jax.pure_callback(twice, like(x), x) + 1)(x),
            "tree": lambda: jax.jit(tree)(x),
            "io": lambda: jax.jit(lambda x: io_callback(twice, like(x), x))(x),
            "io, ordered": lambda: jax.jit(both)(x),
            "outside of jit": lambda: jax.pure_callback(twice, like(x), x),
            "compiled": lambda: (
                jax.jit(lambda x: jax.pure_callback(twice, like(x), x)).lower(x).compile()(x)
            ),
        },
    )


@compared
def callbacks_in_control_flow(devices: Devices) -> Told:  # noqa: C901 - many small programs
    xs = jax.device_put(jnp.arange(3, dtype=F32), devices[0])

    def scan(note: Any, ordered: bool) -> Any:
        def body(c: Any, x: Any) -> Any:
            jax.debug.callback(note, c, x, ordered=ordered)
            return c + x, c * x

        return jax.jit(lambda xs: jax.lax.scan(body, F32(1), xs))(xs)

    def loop(note: Any) -> Any:
        def body(c: Any) -> Any:
            jax.debug.callback(note, c, ordered=True)
            return io_callback(lambda v: np.asarray(v) + F32(1), like(F32(0)), c, ordered=True)

        return jax.jit(lambda: jax.lax.while_loop(lambda c: c < 4, body, F32(0)))()

    def condition(note: Any) -> Any:
        def f(x: Any) -> Any:
            return jax.lax.cond(x.sum() > 2, lambda: jax.debug.callback(note, x), lambda: None)

        return [jax.jit(f)(xs), jax.jit(f)(xs - 5)]

    def switch(x: Any) -> Any:
        branches = [
            lambda x, k=k: jax.pure_callback(lambda v: np.asarray(v) + k, like(x), x)
            for k in range(3)
        ]
        return [jax.jit(lambda i, x: jax.lax.switch(i, branches, x))(i, x) for i in range(3)]

    def loop_condition() -> Any:
        def goes_on(c: Any) -> Any:
            return jax.pure_callback(lambda v: np.asarray(v < 3), like(np.bool_(0)), c)

        return jax.jit(lambda: jax.lax.while_loop(goes_on, lambda c: c + 1, F32(0)))()

    def map_of(x: Any) -> Any:
        return jax.lax.map(lambda v: jax.pure_callback(np.sin, like(v), v), x)

    return tell_all(
        devices,
        {
            "scan": noted(lambda note: scan(note, False)),
            "scan, ordered": noted(lambda note: scan(note, True), ordered=True),
            "while": noted(loop, ordered=True),
            "while's condition": loop_condition,
            "cond": noted(condition),
            "switch": lambda: switch(xs),
            "map": lambda: jax.jit(map_of)(xs),
            "fori": lambda: jax.jit(
                lambda x: jax.lax.fori_loop(
                    0, 3, lambda i, x: jax.pure_callback(np.cos, like(x), x), x
                )
            )(xs),
        },
    )


@compared
def callbacks_under_transformations(devices: Devices) -> Told:  # noqa: C901 - many small programs
    x = jax.device_put(jnp.arange(6, dtype=F32).reshape(2, 3), devices[0])

    def sine(v: Any) -> Any:
        return np.sin(np.asarray(v))

    def mapped(method: str) -> Case:
        def f(v: Any) -> Any:
            return jax.pure_callback(sine, like(v), v, vmap_method=method)

        return lambda: jax.jit(jax.vmap(f))(x)

    @jax.custom_jvp
    def outside(v: Any) -> Any:
        return jax.pure_callback(sine, like(v), v, vmap_method="sequential")

    @outside.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return outside(*primals), jnp.cos(primals[0]) * tangents[0]

    def rounded(v: Any) -> Any:
        # (The sum is the same in any order, which is XLA's choice.)
        return np.round(sine(v) * 64) / 64

    @jax.custom_vjp
    def outside_back(v: Any) -> Any:
        return jax.pure_callback(rounded, like(v), v)

    def forward(v: Any) -> Any:
        return outside_back(v), v

    def backward(v: Any, g: Any) -> Any:
        return (jax.pure_callback(lambda v, g: np.cos(v) * g, like(v), v, g),)

    outside_back.defvjp(forward, backward)

    def debugged(note: Any) -> Any:
        def f(v: Any) -> Any:
            jax.debug.callback(note, v)
            return (v**2).sum()

        return jax.jit(jax.grad(f))(x), jax.jit(jax.vmap(f))(x), jax.jit(jax.hessian(f))(x[0])

    def remembered(note: Any) -> Any:
        @jax.checkpoint
        def f(v: Any) -> Any:
            jax.debug.callback(note, v)
            return jnp.sin(v).sum()

        return jax.jit(jax.grad(f))(x)

    return tell_all(
        devices,
        {
            **{
                f"vmap, {method}": mapped(method)
                for method in ("sequential", "expand_dims", "broadcast_all", "legacy_vectorized")
            },
            "vmap of io": lambda: jax.jit(jax.vmap(lambda v: io_callback(sine, like(v), v)))(x),
            "no jvp": lambda: jax.grad(lambda v: jax.pure_callback(sine, like(v), v).sum())(x),
            "custom_jvp": lambda: jax.jit(jax.grad(lambda v: outside(v).sum()))(x),
            "custom_vjp": lambda: jax.jit(jax.value_and_grad(lambda v: outside_back(v).sum()))(x),
            "debug": noted(debugged),
            "checkpoint": noted(remembered),
        },
    )


@compared
def callbacks_with_every_dtype(devices: Devices) -> Told:
    names = (
        *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"),
        *("complex64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
    )
    cases: dict[Any, Case] = {}
    for name in names:
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        x = jax.device_put(np.array([[1, 0, 3], [4, 5, 6]]).astype(dtype), devices[0])

        def there_and_back(note: Any, x: Any = x) -> Any:
            def f(x: Any) -> Any:
                jax.debug.callback(note, x)
                return jax.pure_callback(lambda v: np.asarray(v)[::-1], like(x), x)

            return jax.jit(f)(x)

        cases[name] = noted(there_and_back)
    empty = jnp.zeros((0, 3), F32)
    scalar = jnp.float32(2)
    cases["empty"] = lambda: jax.jit(lambda x: jax.pure_callback(lambda v: v, like(x), x))(empty)
    cases["scalar"] = lambda: jax.jit(lambda x: jax.pure_callback(np.exp, like(x), x))(scalar)
    cases["python"] = lambda: jax.jit(lambda x: jax.pure_callback(lambda v: 1.5, like(x), x))(
        scalar
    )
    return tell_all(devices, cases)


@compared
def callbacks_that_fail(devices: Devices) -> Told:
    x = jax.device_put(jnp.arange(4, dtype=F32), devices[0])

    def bad(*_: Any) -> Any:
        raise ValueError("no such thing")

    def returning(result: Any) -> Case:
        return lambda: jax.jit(lambda x: jax.pure_callback(lambda _: result, like(x), x))(x)

    def debugging(x: Any) -> Any:
        jax.debug.callback(bad, x)
        return x

    def with_barrier() -> Any:
        jax.jit(debugging)(x)
        jax.effects_barrier()

    def checked(x: Any) -> Any:
        checkify.debug_check(x.sum() < 0, "sum is {s}", s=x.sum())
        return x

    return tell_all(
        devices,
        {
            "raises": lambda: jax.jit(lambda x: jax.pure_callback(bad, like(x), x))(x),
            "raises in io": lambda: jax.jit(lambda x: io_callback(bad, like(x), x))(x),
            "raises in debug": with_barrier,
            "shape": returning(np.zeros(3, F32)),
            "dtype": returning(np.zeros(4, np.int32)),
            "number": returning((np.zeros(4, F32),) * 2),
            "none": returning(None),
            "checked": lambda: jax.jit(checkify.checkify(checked))(x)[0].get(),  # noqa: PLW0108
            "after all that": lambda: jax.jit(lambda x: jax.pure_callback(np.sin, like(x), x))(x),
        },
    )
