"""Meshes over several slices, without jax.distributed: one process, all slices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.e2e.libraries.comparing import Devices, Told, compared


def hybrid(devices: Devices, per_slice: tuple[int, int] = (1, 4)) -> Mesh:
    """A mesh whose first axis runs over slices; the CPU's devices have none, so by their order."""
    if devices[0].client.runtime_type.startswith("proxy/"):
        assert [device.slice_index for device in devices] == [0] * 4 + [1] * 4
        grid = mesh_utils.create_hybrid_device_mesh(per_slice, (2, 1), devices)
    else:
        shape = (2 * per_slice[0], per_slice[1])
        grid = np.array(devices).reshape(shape)
    return Mesh(grid, ("slice", "chip"))


@compared
def hybrid_meshes(devices: Devices) -> Told:
    for per_slice in ((1, 4), (4, 1), (2, 2)):
        grid = hybrid(devices, per_slice).devices
        assert {device.id for device in grid.flat} == {device.id for device in devices}
        # One after the other along the first axis, whole slices.
        halves = np.split(grid, 2)
        numbers = [{getattr(d, "slice_index", 0) for d in half.flat} for half in halves]
        assert [len(found) for found in numbers] == [1, 1]
    assert not jax.distributed.is_initialized()
    assert {device.process_index for device in devices} == {jax.process_index()}
    return {"slices": len(halves)}


@compared
def collectives_across_slices(devices: Devices) -> Told:
    where = hybrid(devices)

    def collect(x: Any) -> dict[str, Any]:
        return {
            "psum over slices": jax.lax.psum(x, "slice"),
            "psum over all": jax.lax.psum(x, ("slice", "chip")),
            "pmean in a slice": jax.lax.pmean(x, "chip"),
            "gathered": jax.lax.all_gather(x, "slice", tiled=True),
            "swapped": jax.lax.ppermute(x, "slice", [(0, 1), (1, 0)]),
            "scattered": jax.lax.psum_scatter(x, "chip", tiled=True),
            "turned": jax.lax.all_to_all(x, "slice", 1, 0, tiled=True),
            "place": jax.lax.axis_index(("slice", "chip"))[None],
        }

    each = P(("slice", "chip"))
    run = jax.jit(jax.shard_map(collect, mesh=where, in_specs=each, out_specs=each))
    told: Told = run(np.arange(64 * 4.0, dtype=np.float32).reshape(64, 4))
    return told


@compared
def automatic_partitioning(devices: Devices) -> Told:
    """Data over slices, the model within: XLA puts the collectives in."""
    where = hybrid(devices)
    random = np.random.default_rng(1)
    data = random.normal(size=(8, 16)).astype(np.float32)
    weights = random.normal(size=(16, 16)).astype(np.float32)

    @jax.jit
    def gradient(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)

    w = jax.device_put(weights, NamedSharding(where, P(None, "chip")))
    x = jax.device_put(data, NamedSharding(where, P("slice")))
    result = gradient(w, x)
    explicit = Mesh(where.devices, where.axis_names, axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        w = jax.device_put(weights, P(None, "chip"))
        x = jax.device_put(data, P("slice"))
        named = gradient(w, x)
    assert jax.typeof(named).sharding.spec == P(None, "chip")
    return {"gradient": result, "under explicit axes": named}


@compared
def the_ends_of_make_mesh(devices: Devices) -> Told:
    """`jax.make_mesh` knows one slice only, on a TPU as here."""
    if devices[0].client.runtime_type.startswith("proxy/"):
        if jax.__version_info__ >= (0, 10):  # before, it took devices of any slices
            with pytest.raises(ValueError, match="does not support multi-slice topologies"):
                jax.make_mesh((2, 4), ("slice", "chip"), devices=devices)
        # Devices of one process are no granules.
        with pytest.raises(ValueError, match="must equal the product of dcn_mesh_shape"):
            mesh_utils.create_hybrid_device_mesh((1, 4), (2, 1), devices, process_is_granule=True)
    told = {}
    for number, part in enumerate((devices[:4], devices[4:])):
        where = jax.make_mesh((2, 2), ("x", "y"), devices=part, axis_types=(AxisType.Auto,) * 2)
        array = jax.device_put(
            np.arange(4.0, dtype=np.float32), NamedSharding(where, P(("y", "x")))
        )
        told[f"slice {number}"] = jax.jit(jnp.cumsum)(array)
    return told


@compared
def one_process(devices: Devices) -> Told:
    """What programs for several hosts call is answered as by the only one."""
    multihost_utils.sync_global_devices("name")
    values = np.arange(3.0)
    return {
        "processes": jax.process_count(),
        "gathered": multihost_utils.process_allgather(values),
        "broadcast": multihost_utils.broadcast_one_to_all(values),
    }
