"""Python callbacks and other programs at once: which wait, which continue, and what is released."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.callbacks import F32, Seen, like

CALLBACK_CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CALLBACK_CHECKS[function.__name__] = function
    return function


@check
def large_arrays_there_and_back() -> None:
    x = jnp.arange(3 << 20, dtype=jnp.int32)

    def reverse(a: Any, b: Any) -> Any:
        return np.asarray(b)[::-1], np.asarray(a) + 1

    got = jax.jit(lambda x: jax.pure_callback(reverse, (like(x), like(x)), x, x * 2))(x)
    np.testing.assert_array_equal(got[0], np.arange(3 << 20)[::-1] * 2)
    np.testing.assert_array_equal(got[1], np.arange(3 << 20) + 1)


@check
def a_callback_uses_jax_on_the_same_device() -> None:
    """Also a program too large to run at once, and one with callbacks of its own."""

    def inner(v: Any) -> Any:
        a = jnp.ones((200, 200)) @ jnp.ones((200, 200))
        b = jax.jit(lambda y: jax.pure_callback(np.sin, like(y), y))(jnp.asarray(np.asarray(v)))
        return np.asarray(a.sum() + b.sum())

    got = jax.jit(lambda x: jax.pure_callback(inner, like(F32(0)), x))(jnp.zeros(4))
    assert got == 200**3


@check
def a_callback_uses_jax_on_another_slice_and_over_several_devices() -> None:
    there = Mesh(np.array(jax.devices()[4:]), ("d",))

    def inner(v: Any) -> Any:
        x = jax.device_put(np.asarray(v), NamedSharding(there, P("d")))
        return np.asarray(jax.jit(lambda x: x.sum())(x))

    x = jax.device_put(np.arange(8, dtype=F32), jax.devices()[0])
    assert jax.jit(lambda x: jax.pure_callback(inner, like(F32(0)), x))(x) == 28


@check
def programs_behind_a_callback_go_on() -> None:
    """What does not depend on the one that waits runs; what does waits, and sees its result."""
    waits, goes_on = threading.Event(), threading.Event()

    def slow(v: Any) -> Any:
        waits.set()
        assert goes_on.wait(60)
        return np.asarray(v) + 1

    x, y = jnp.zeros(4), jnp.full((4,), 5.0)
    first = jax.jit(lambda x: jax.pure_callback(slow, like(x), x))(x)
    dependent = jax.jit(lambda a, b: a * 2 + b)(first, y)
    taken = jax.jit(lambda y: y + 1, donate_argnums=0)(y)
    assert waits.wait(60)
    # (Of the same device, and behind it.)
    assert float(jax.jit(lambda x: (x + 3).sum())(x)) == 12
    goes_on.set()
    np.testing.assert_array_equal(dependent, np.full(4, 7.0))
    np.testing.assert_array_equal(taken, np.full(4, 6.0))


@check
def what_a_callback_reads_is_not_given_away() -> None:
    """A later program that takes an argument's memory waits for the one that reads it."""
    goes_on = threading.Event()
    seen: Seen = []

    def slow(v: Any) -> None:
        assert goes_on.wait(60)
        seen.append(np.array(v))

    def f(x: Any) -> Any:
        y = x * 2
        jax.debug.callback(slow, y)
        return x.sum()

    x = jnp.arange(4.0)
    total = jax.jit(f)(x)
    taken = jax.jit(lambda x: x - 100, donate_argnums=0)(x)
    goes_on.set()
    assert float(total) == 6
    jax.effects_barrier()
    np.testing.assert_array_equal(seen[0], np.arange(4.0) * 2)
    np.testing.assert_array_equal(taken, np.arange(4.0) - 100)


@check
def after_a_failed_ordered_callback_the_next_one_of_the_device_fails() -> None:
    """JAX gives it the failed one's token; `jax.effects_barrier` drops that."""

    def fail(v: Any) -> Any:
        raise ValueError(f"no {v}")

    def calling(function: Callable[[Any], Any]) -> Any:
        return jax.jit(lambda x: io_callback(function, like(x), x, ordered=True))

    fails, works = calling(fail), calling(np.sin)
    for program in (fails, works):
        with pytest.raises(jax.errors.JaxRuntimeError, match="no 3"):
            float(program(F32(3)))
    assert float(works(F32(3))) == np.sin(F32(3))
    with pytest.raises(jax.errors.JaxRuntimeError, match="no 3"):
        float(fails(F32(3)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="no 3"):
        jax.effects_barrier()
    assert float(works(F32(3))) == np.sin(F32(3))


@check
def several_callbacks_are_out_at_once() -> None:
    together = threading.Barrier(4)

    def meet(v: Any) -> Any:
        together.wait(60)
        return np.asarray(v)

    program = jax.jit(lambda x: jax.pure_callback(meet, like(x), x))
    xs = [jax.device_put(F32(i), jax.devices()[i]) for i in (0, 1, 4, 5)]
    assert [float(y) for y in [program(x) for x in xs]] == [0, 1, 4, 5]


@check
def the_program_of_a_mark_is_left_as_it_was() -> None:
    lowered = jax.jit(lambda x: jax.pure_callback(np.sin, like(x), x)).lower(F32(1))
    before = lowered.as_text()
    first, second = lowered.compile(), lowered.compile()
    assert lowered.as_text() == before
    assert first(F32(1)) == second(F32(1)) == np.sin(F32(1))


@check
def functions_are_let_go_of_with_their_programs() -> None:
    from harness.deadlines import wait_until
    from shared_pathways_service.jax_client.plugin import callbacks

    def dropped() -> bool:
        jax.clear_caches()
        gc.collect()
        return not served._functions

    jax.devices()
    (served,) = callbacks._served.values()
    wait_until("those of other checks are dropped", dropped)
    programs = [
        jax.jit(lambda x, i=i: jax.pure_callback(lambda v: v + i, like(x), x)) for i in range(5)
    ]
    for i, program in enumerate(programs):
        assert float(program(F32(1))) == 1 + i
    assert len(served._functions) == 5
    del program
    programs.clear()
    wait_until("these are dropped", dropped)
