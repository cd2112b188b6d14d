"""What JAX's client refuses or answers by itself: the proxy's counters show no request for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import grpc
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.basics import check, fails, mesh, on
from harness.jax_checks.compared import JAX_RELEASE
from harness.processes import DEADLINE_S
from shared_pathways_service.metrics.families import values_of
from shared_pathways_service.metrics.measurement_messages import METHOD, SERVICE, families_of
from shared_pathways_service.protocol import proxy_status_pb2 as pb

#: Sent at some later time, for arrays that were given up before.
DELETIONS = {"destruct_array", "delete_array"}
#: With which JAX takes an array's only piece before it fetches it: 0.11 does so twice.
_TAKES_PIECE = [
    *(["fully_replicated_shard"] if JAX_RELEASE < (0, 12) else []),
    *(["disassemble_into_single_device_arrays"] if JAX_RELEASE >= (0, 11) else []),
]


def requests() -> dict[str, int]:
    """Returns how many requests of each kind the proxy has handled."""
    address = str(jax.config.read("jax_backend_target")).removeprefix("grpc://")
    with grpc.insecure_channel(address) as channel:
        method: Any = channel.unary_unary(
            f"/{SERVICE}/{METHOD}", response_deserializer=pb.GetCountersResponse.FromString
        )
        counters = method(b"", timeout=DEADLINE_S, wait_for_ready=True)
    values: dict[str, Any] = values_of(families_of(counters))
    told = values["sps_proxy_requests_total"]
    return {kind: count for kind, count in told.items() if kind not in DELETIONS}


def asks_nobody(function: Callable[[], Any]) -> None:
    before = requests()
    function()
    assert requests() == before


@check
def what_the_client_refuses_by_itself() -> None:
    x: Any = jax.block_until_ready(jnp.ones(8))
    text = np.array(["text"], np.dtypes.StringDType())
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: np.from_dlpack(x, copy=False), "a copy is necessary"),
        (lambda: jax.device_put(text, jax.devices()[0]), "can only be sharded to CPU devices"),
    ]
    for function, text_of_error in refused:
        asks_nobody(functools.partial(fails, function, text_of_error))


@check
def numpy_arrays_that_were_flipped_or_broadcast() -> None:
    rows = np.arange(64, dtype=np.float32).reshape(8, 8)
    add = jax.jit(lambda x, y: x + y)
    for values in (rows[::-1], rows[:, ::-1], np.broadcast_to(rows[:1], (8, 8)), rows.T[::-1]):
        for where in (None, jax.devices()[1], on(("slice", "x")), on()):
            put = jax.device_put(values, where) if where is not None else jnp.asarray(values)
            np.testing.assert_array_equal(np.asarray(put), values)
        for _ in range(3):  # at first by Python, then by JAX's quick way
            np.testing.assert_array_equal(add(values, 1), values + 1)
    np.testing.assert_array_equal(jnp.flip(np.flip(rows)), rows)
    weak = jnp.asarray(np.broadcast_to(np.float32(2), (3,)))
    assert weak.dtype == jnp.float32


@check
def arrays_of_this_machine_s_cpu() -> None:
    values = np.arange(16, dtype=jnp.bfloat16).reshape(8, 2)
    cpus = Mesh(np.array(jax.devices("cpu")), ("x",))
    one = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), P())
    here = jax.device_put(values, jax.devices("cpu")[0])
    spread = jax.device_put(values, NamedSharding(cpus, P("x")))
    for source in (here, spread):
        for there in (one, on(("slice", "x")), on(), jax.devices()[3]):
            put = jax.device_put(source, there)
            assert put.devices() == getattr(there, "device_set", {there})
            np.testing.assert_array_equal(np.asarray(put), values)
    back = jax.device_put(jax.device_put(values, on(("slice", "x"))), NamedSharding(cpus, P("x")))
    assert back.devices() == set(jax.devices("cpu"))
    np.testing.assert_array_equal(np.asarray(back), values)
    both = jax.device_put({"here": here, "there": jax.device_put(values, one)}, on())
    assert both["here"].sharding == both["there"].sharding == on()


@check
def sums_that_are_not_added_up_yet() -> None:
    if JAX_RELEASE < (0, 11):
        return  # their JAX copies nothing of that kind to another client's devices
    here, there = (
        Mesh(np.array(jax.devices(which)[:2]), ("x",), (AxisType.Explicit,))
        for which in ("cpu", "proxy")
    )
    rows, columns = (
        jax.device_put(np.arange(8.0).reshape(shape), NamedSharding(there, spec))
        for shape, spec in (((2, 4), P(None, "x")), ((4, 2), P("x", None)))
    )
    summands = NamedSharding(there, P(unreduced={"x"}))
    unadded = jnp.dot(rows, columns, out_sharding=summands)
    copied = jax.device_put(unadded, NamedSharding(here, P(unreduced={"x"})))
    assert copied.devices() == set(jax.devices("cpu")[:2])
    for before, after in zip(unadded.addressable_shards, copied.addressable_shards, strict=True):
        np.testing.assert_array_equal(np.asarray(before.data), np.asarray(after.data))
    added = jax.sharding.reshard(copied, NamedSharding(here, P()))
    np.testing.assert_array_equal(added, np.asarray(rows) @ np.asarray(columns))


@check
def the_cost_of_what_is_not_compiled() -> None:
    x = np.ones((8, 8), np.float32)
    with jax.default_device(jax.devices("cpu")[0]):
        wanted: Any = jax.jit(lambda x: x @ x).lower(x).cost_analysis()
    assert jax.jit(lambda x: x @ x).lower(x).cost_analysis() == wanted
    assert wanted["flops"] > 0


@check
def what_the_client_answers_by_itself() -> None:
    x = jax.device_put(np.ones(8), NamedSharding(mesh(), P()))
    view = x.addressable_data(0)
    jax.block_until_ready(jax.jit(lambda x: x + 1, donate_argnums=0)(x))
    asks_nobody(x.is_deleted)
    asks_nobody(view.is_deleted)
    assert x.is_deleted()
    assert not view.is_deleted()


@check
def lists_of_arrays_are_one_request_for_each_that_is_put_and_few_for_each_that_is_fetched() -> None:
    count = 50
    rows = [np.full(4, number, np.float32) for number in range(count)]
    add = jax.jit(lambda *xs: [x + 1 for x in xs])
    jax.block_until_ready(add(*jax.device_put(rows)))

    def asked(function: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
        before = requests()
        result = jax.block_until_ready(function())
        return result, {
            k: n - before.get(k, 0) for k, n in requests().items() if n > before.get(k, 0)
        }

    waited = {"check_value_ready": 1}
    arrays, put = asked(lambda: jax.device_put(rows))
    assert put == waited | {"make_array_from_host_buffer": count}, put
    _, ran = asked(lambda: add(*arrays))
    assert ran == waited | {"loaded_executable_execute": 1}, ran
    fetched, got = asked(lambda: jax.device_get(arrays))
    assert got.pop("copy_to_host_buffer") == count, got
    assert got == dict.fromkeys(_TAKES_PIECE, count), got
    np.testing.assert_array_equal(fetched, rows)
