"""What JAX's client refuses or answers by itself: the proxy's counters show no request for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import grpc
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shared_pathways_service.core.openmetrics import values_of
from shared_pathways_service.protocol import proxy_status_pb2 as pb
from shared_pathways_service.protocol.counters import METHOD, SERVICE, families_of
from tests.processes import DEADLINE_S
from tests.servers.proxy.jax_checks import check, fails, mesh, on

#: Sent at some later time, for arrays that were given up before.
DELETIONS = {"destruct_array", "delete_array"}
NOT_PJRT = "implemented for a PjRt-compatible backend only"


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
    def shout(x: Any) -> Any:
        jax.debug.print("x is {}", x)
        return x

    def call_back(x: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    x = jax.block_until_ready(jnp.ones(8))
    here = jax.block_until_ready(jax.device_put(np.ones(8), jax.devices("cpu")[0]))
    one = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), P())
    split = jax.block_until_ready(jax.device_put(np.ones(8), on(("slice", "x"))))
    quiet, loud, calling = (jax.jit(f).lower(x) for f in (lambda x: x + 1, shout, call_back))
    runtime: Any = quiet.compile().runtime_executable()
    refused: list[tuple[Callable[[], Any], str]] = [
        (x.unsafe_buffer_pointer, NOT_PJRT),
        (lambda: memoryview(x), "Only local arrays are supported, got proxy::Array"),
        (quiet.cost_analysis, NOT_PJRT),
        (runtime.serialize, "does not support `Serialize`"),
        (runtime.hlo_modules, "does not support LoadedExecutable::GetHloModules"),
        (loud.compile, "Unsupported host callback type"),
        (calling.compile, "Unsupported host callback type"),
        (lambda: jax.device_put(here, one), "owned by a non-PjRt-compatible client"),
        (
            lambda: jax.device_put(split, NamedSharding(Mesh(jax.devices("cpu"), ("x",)), P("x"))),
            "CopyArrays only supports devices that are instances of",
        ),
    ]
    rows = np.arange(8, dtype=np.float32)
    refused += [
        (functools.partial(jax.device_put, values), "Negative or zero strides")
        for values in (rows[::-1], np.broadcast_to(rows[:1], (8,)))
    ]
    for function, text in refused:
        asks_nobody(functools.partial(fails, function, text))


@check
def what_the_client_answers_by_itself() -> None:
    x = jax.device_put(np.ones(8), NamedSharding(mesh(), P()))
    view = x.addressable_data(0)
    jax.block_until_ready(jax.jit(lambda x: x + 1, donate_argnums=0)(x))
    asks_nobody(x.is_deleted)
    asks_nobody(view.is_deleted)
    assert x.is_deleted()
    assert not view.is_deleted()
