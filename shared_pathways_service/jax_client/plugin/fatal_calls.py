"""Refuses calls that would end the process: jaxlib takes any client for one of its own kind.

`stress/jaxlib_entries` calls all of jaxlib with objects of a proxy, and has found these.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from .attempts import runtime_error

__all__ = ["install"]

#: How the names of the runtimes begin to which a proxy's client belongs.
_PROXY = "proxy/"
_TRANSFER = "jax.experimental.transfer"


def install() -> None:
    """Installs the refusals in this process permanently; other clients are passed on."""
    jaxlib: Any = importlib.import_module("jaxlib._jax")
    # (Missing parts of another version of JAX must not end the program.)
    if original := getattr(jaxlib.Client, "get_default_layout", None):
        jaxlib.Client.get_default_layout = _layout(original)
    if original := getattr(jaxlib, "start_transfer_server", None):
        jaxlib.start_transfer_server = _transfer_server(original)
        # A program may have imported it already.
        if (known := sys.modules.get(_TRANSFER)) is not None:
            vars(known)["start_transfer_server"] = jaxlib.start_transfer_server


def _layout(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def get_default_layout(client: Any, dtype: Any, shard_shape: Any, device: Any) -> Any:
        if device.client is not client:
            raise runtime_error()(
                f"INVALID_ARGUMENT: get_default_layout: {device!r} is a device of another client"
            )
        return original(client, dtype, shard_shape, device)

    return get_default_layout


def _transfer_server(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def start_transfer_server(client: Any, *args: Any, **named: Any) -> Any:
        if client.runtime_type.startswith(_PROXY):
            raise runtime_error()(
                "UNIMPLEMENTED: jax.experimental.transfer needs the devices in this process, and "
                "those of a proxy are not: use jax.device_put between slices, or the client of "
                "jax.local_devices(backend='cpu')"
            )
        return original(client, *args, **named)

    return start_transfer_server
