"""Functions that use a library on some devices, and must tell the same of the CPU and of a proxy.

Each gets eight devices in two slices of four (on the CPU: of one, taken for two) and returns
figures by name. What it can know by itself (what was saved is what is restored) it asserts.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Devices = Sequence[Any]
Told = dict[str, Any]
COMPARED: dict[str, Callable[[Devices], Told]] = {}
#: Of floating-point figures: the order in which eight devices' parts are added up may differ.
RTOL = 1e-5


def compared(function: Callable[[Devices], Told]) -> Callable[[Devices], Told]:
    COMPARED[function.__name__] = function
    return function


def compare(name: str) -> None:
    """Runs a function on the CPU's devices and on the proxy's, and compares what they tell."""
    told = {}
    for platform in ("cpu", "proxy"):
        devices = jax.devices(platform)
        with jax.default_device(devices[0]):
            told[platform] = {k: np.asarray(v) for k, v in COMPARED[name](devices).items()}
    assert told["cpu"], "nothing is told"
    assert told["cpu"].keys() == told["proxy"].keys()
    for key, here in told["cpu"].items():
        there = told["proxy"][key]
        rtol = RTOL if np.issubdtype(here.dtype, np.floating) else 0.0
        np.testing.assert_allclose(there, here, rtol=rtol, err_msg=key, strict=True)


def mesh(devices: Devices) -> Mesh:
    return Mesh(np.array(devices).reshape(2, 4), ("slice", "chip"))


def put(where: Mesh, values: Any, *axes: Any, memory: str = "device") -> Any:
    return jax.device_put(values, NamedSharding(where, P(*axes), memory_kind=memory))


def bits(leaf: Any) -> tuple[str, tuple[int, ...], bytes]:
    """What a leaf of a state is, to the last bit; a key's are those of its data."""
    kind = str(leaf.dtype) if isinstance(leaf, jax.Array) else type(leaf).__name__
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    whole = np.asarray(leaf)
    return f"{kind} {whole.dtype}", whole.shape, whole.tobytes()


def assert_same(restored: Any, saved: Any) -> None:
    """Asserts that two states are the same to the last bit, wherever they lie."""
    found, wanted = (dict(jax.tree.leaves_with_path(tree)) for tree in (restored, saved))
    assert found.keys() == wanted.keys()
    for path, leaf in found.items():
        assert bits(leaf) == bits(wanted[path]), jax.tree_util.keystr(path)


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sps") as path:
        yield Path(path)
