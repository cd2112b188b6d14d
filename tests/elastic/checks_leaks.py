"""Checks of what is let go of: a proxy's client ends only with the last that holds its devices."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shared_pathways_service.elastic.checkpoints.checkpoints import Checkpoints
from shared_pathways_service.elastic.health.probes import add_one_everywhere
from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.elastic.training.restoring import States
from tests.elastic.registry import check

#: JAX 0.9 itself keeps the devices of each Mesh for as long as the process lives.
JAX_KEEPS_MESHES = jax.__version_info__ < (0, 10)


def held() -> np.ndarray[Any, Any]:
    """Returns how often each device is held, when JAX has let go of it at a connection's end."""
    jax.clear_caches()
    gc.collect()
    return np.array([sys.getrefcount(device) for device in jax.devices()])


@check
def a_probe_keeps_no_device(directory: Path) -> None:
    del directory
    devices = jax.devices()
    add_one_everywhere(devices[:4])
    before = held()
    if JAX_KEEPS_MESHES:
        return
    # Each list of devices is new to it, as are those of the next proxy.
    for count in range(1, len(devices)):
        add_one_everywhere(devices[:count])
    # (What checks before this one left to threads may be let go of meanwhile.)
    assert (held() <= before).all()


@check
def checkpoints_keep_no_device_of_a_proxy_that_is_gone(directory: Path) -> None:
    def save_and_restore(devices: Sequence[jax.Device]) -> None:
        where = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec())
        state = {"x": jax.device_put(np.ones(8, np.float32), where)}
        with Checkpoints(directory / str(len(devices))) as checkpoints:
            states = States(checkpoints, None, None, lambda _: None)
            checkpoints.save(state, Progress(step=1))
            restored, _ = states.restore(state, where, lambda wait: wait(), (0,))
            assert float(restored["x"].sum()) == 8.0
            states.forget_devices()

    save_and_restore(jax.devices()[:1])
    if JAX_KEEPS_MESHES:
        return
    before = held()
    for count in range(2, 5):
        save_and_restore(jax.devices()[:count])
    # (What checks before this one left to threads may be let go of meanwhile.)
    assert (held() <= before).all()
