"""A process whose JAX has a backend for each version of the protocol; does all that one can do.

    python -m tests.servers.proxy.protocol_child VERSION=ADDRESS...

Reads versions, one a line, and answers each with a line of JSON: what was seen, by name.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.extend import backend
from jax.extend.backend import ifrt_proxy
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from pathwaysutils import reshard  # type: ignore[import-untyped]
from pathwaysutils.experimental import (  # type: ignore[import-untyped]
    concatenate_by_mesh_axis,
    split_by_mesh_axis,
)


def main(arguments: list[str]) -> None:
    addresses = dict(argument.split("=", 1) for argument in arguments)
    for version, address in addresses.items():
        connect = functools.partial(_connect, address)
        backend.register_backend_factory(f"v{version}", connect, priority=-1)
    jax.config.update("jax_platforms", ",".join(f"v{version}" for version in addresses))
    for line in sys.stdin:
        seen: dict[str, Any]
        try:
            seen = everything(f"v{line.strip()}")
        except BaseException:  # noqa: BLE001 - the parent shows it
            seen = {"failure": traceback.format_exc()}
        sys.stdout.write(json.dumps(seen) + "\n")
        sys.stdout.flush()


def _connect(address: str) -> object:
    options = ifrt_proxy.ClientConnectionOptions()
    options.connection_timeout_in_seconds = 60
    options.initialization_data = {"sps_transfer_dir": b"mine"}
    return ifrt_proxy.get_client(f"grpc://{address}", options)


def everything(platform: str) -> dict[str, Any]:
    """Does what a user may do, and returns what came of it."""
    devices = jax.devices(platform)
    first = SingleDeviceSharding(devices[0])
    split = NamedSharding(Mesh(np.array(devices), ("a",)), P("a"))
    values = np.arange(16, dtype=np.float32)
    seen: dict[str, Any] = {"platform": devices[0].platform, "devices": len(devices)}

    array = jax.device_put(values, split)
    seen["round trip"] = np.asarray(array).tolist()
    double = jax.jit(lambda x: 2 * x)
    # The first time a client hears what the results are, later it may know.
    seen["executed"] = [np.asarray(double(array)).tolist()[-1] for _ in range(3)]
    compiled = double.lower(array).compile()
    executable: Any = compiled.runtime_executable()
    executable.execute_sharded([array], with_tokens=True).consume_token().block_until_ready()
    seen["resharded"] = np.asarray(reshard.reshard(array, first)).tolist()
    # A mesh's axis is that of the slices: apart, and together again.
    slices = Mesh(np.array(devices).reshape(2, 4), ("slice", "a"))
    over = jax.device_put(values, NamedSharding(slices, P(("slice", "a"))))
    halves = split_by_mesh_axis.split_by_mesh_axis([over], "slice")
    seen["halves"] = [[np.asarray(x)[0].item(), len(x.sharding.device_set)] for (x,) in halves]
    (whole,) = concatenate_by_mesh_axis.concatenate_by_mesh_axis(halves, "slice")
    seen["whole"] = np.asarray(double(whole)).tolist()[-1]

    gone = double(array)
    gone.delete()
    seen["deleted"] = [gone.is_deleted(), _told(lambda: double(gone))]

    large = np.arange(1 << 18, dtype=np.float32)
    one = jax.device_put(large, first)
    seen["large"] = float(np.asarray(double(one)).sum()) == 2 * float(large.sum())
    # More than a device may hold: heard of by who waits for it, or for what is made of it.
    too_much = jax.jit(lambda x: jnp.zeros(8 << 20) + x[0])(one)
    seen["poison"] = [_fetched(too_much), _fetched(double(too_much))]
    executable = jax.jit(lambda x: jnp.zeros(8 << 20) + x[0]).lower(one).compile()
    failed = executable.runtime_executable().execute_sharded([one], with_tokens=True)
    seen["failed token"] = _told(lambda: failed.consume_token().block_until_ready())

    # JAX returns None of what its client does not do.
    cost, text = compiled.cost_analysis(), compiled.as_text()
    seen["cost"] = cost and cost["flops"]
    seen["text"] = text and text[:9]
    columns = Format(Layout((1, 0)), first)
    turned = jax.device_put(values.reshape(4, 4), columns)
    seen["layout"] = np.asarray(turned)[0].tolist()
    return seen


def _fetched(array: jax.Array) -> str:
    return _told(lambda: np.asarray(array))


def _told(act: Callable[[], object]) -> str:
    """Returns what comes of it, an error's first line where one does."""
    try:
        return f"{act()}"
    except Exception as error:  # noqa: BLE001 - the parent looks at it
        return str(error).splitlines()[0]


if __name__ == "__main__":
    main(sys.argv[1:])
