"""Functions that must give the same results on JAX's own CPU backend and on a proxy.

`child` runs each on the devices of both, and compares. Results are plain: numbers, texts, bytes. An
error is its type and its first line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

Devices = Sequence[Any]
Told = dict[Any, Any]
Case = Callable[[], Any]
Cases = Mapping[Any, Case]
COMPARED: dict[str, Callable[[Devices], Told]] = {}
#: What JAX's client says or does by itself, without asking the proxy, or the proxy refuses: what is
#: told in place of what the CPU tells, by function and case. `docs/proxy_differences.md` has the
#: reasons.
CLIENTS_OWN: dict[str, Told] = {}
#: Cases that the CPU itself does wrong in the release of JAX that runs this, by function.
CPU_IS_WRONG: dict[str, set[Any]] = {}
#: Major, minor and patch.
JAX_RELEASE = jax.__version_info__[:3]


def compared(function: Callable[[Devices], Told]) -> Callable[[Devices], Told]:
    COMPARED[function.__name__] = function
    return function


def mesh(devices: Devices) -> Mesh:
    return Mesh(np.array(devices).reshape(2, 4), ("a", "b"))


def tell(devices: Devices, function: Case) -> Any:
    """Returns the result of a function, or its error as text."""
    try:
        return jax.tree.map(_plain, jax.block_until_ready(function()))
    except Exception as error:  # noqa: BLE001 - what it is, is what is looked at
        text = str(error).split("\n", 1)[0]
        for number, device in enumerate(devices):
            for name in (repr(device), str(device)):
                text = text.replace(name, f"device {number}")
        text = text.replace(devices[0].device_kind, "cpu")
        # A proxy of CPUs reports a platform of its own.
        text = text.replace("on platform PROXY", "on platform CPU")
        return type(error).__name__, re.sub(r"0x[0-9a-f]+", "0x", text)


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        whole = np.asarray(leaf)
        return str(whole.dtype), whole.shape, whole.tobytes()
    return leaf


def tell_all(devices: Devices, cases: Cases) -> Told:
    return {case: tell(devices, function) for case, function in cases.items()}


def under(name: Any, cases: Cases) -> dict[Any, Case]:
    """Returns cases with a prefix before their names."""
    return {(name, case): function for case, function in cases.items()}
