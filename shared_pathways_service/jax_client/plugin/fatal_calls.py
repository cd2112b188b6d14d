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
_NO_TRANSFER = (
    f"UNIMPLEMENTED: {_TRANSFER} needs the devices in this process, and those of a proxy are not: "
    "use jax.device_put between slices, or the client of jax.local_devices(backend='cpu')"
)


def install() -> None:
    """Installs the refusals in this process permanently; other clients are passed on."""
    jaxlib: Any = importlib.import_module("jaxlib._jax")
    # (Missing parts of another version of JAX must not end the program.)
    if original := getattr(jaxlib.Client, "get_default_layout", None):
        jaxlib.Client.get_default_layout = _layout(original)
    connection: Any = getattr(jaxlib, "TransferConnection", None)
    if original := getattr(connection, "_pull_flat", None):
        connection._pull_flat = _pull(original)  # noqa: SLF001 - what `pull` calls
    if original := getattr(connection, "_pull_into_flat", None):
        connection._pull_into_flat = _pull_into(original)  # noqa: SLF001 - as above, into arrays that exist
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


def _pull(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def pull(connection: Any, uuid: Any, client: Any, avals: Any, *args: Any, **named: Any) -> Any:
        for aval in avals:
            if any(one is not client for one in _clients_of(aval)):
                raise runtime_error()(
                    f"INVALID_ARGUMENT: pull: {aval!r} is on devices of another client than the "
                    "first array"
                )
        return original(connection, uuid, client, avals, *args, **named)

    return pull


def _pull_into(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def pull_into(connection: Any, uuid: Any, arrays: Any, *args: Any, **named: Any) -> Any:
        for array in arrays:
            if any(one.runtime_type.startswith(_PROXY) for one in _clients_of(array)):
                raise runtime_error()(_NO_TRANSFER)
        return original(connection, uuid, arrays, *args, **named)

    return pull_into


def _clients_of(array: Any) -> list[Any]:
    devices = getattr(getattr(array, "sharding", None), "device_set", ())
    return [device.client for device in devices]


def _transfer_server(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def start_transfer_server(client: Any, *args: Any, **named: Any) -> Any:
        if client.runtime_type.startswith(_PROXY):
            raise runtime_error()(_NO_TRANSFER)
        return original(client, *args, **named)

    return start_transfer_server
