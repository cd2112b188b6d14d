"""Runs the functions of one session; its parent is the proxy, or an executor.

    python -m shared_pathways_service.servers.colocated.child SOCKET_FD DEVICES PARENT_PID

JAX has as many CPU devices here as the proxy has devices, with the same numbers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.colocated_python import serialization

from shared_pathways_service.servers.colocated.python_messages import (
    Buffer,
    encode,
    receive_buffer,
    receive_head,
    send,
    sizes_of,
)
from shared_pathways_service.servers.serving.process import exit_with_parent

#: The longest text of an error.
_TEXT = 16_384


class Function:
    """A function as JAX's client pickled it, with the types of its arguments and results."""

    def __init__(self, pickled: bytes) -> None:
        found = serialization._deserialize(pickled)  # noqa: SLF001 - JAX has no public one
        self._function, self._in_tree, self._arguments, _, self._results, _ = found

    def call(self, buffers: Sequence[Buffer], devices: Sequence[int]) -> list[Buffer]:
        """Calls the function.

        Args:
          buffers: The pieces of each argument.
          devices: The device of each piece, for all arguments and results.
        """
        with _wide_types(self._arguments, self._results):
            rest = iter(buffers)
            leaves = [
                _array(spec, [(next(rest), device) for device in devices])
                for spec in self._arguments
            ]
            arguments, keywords = jax.tree.unflatten(self._in_tree, leaves)
            results = jax.tree.leaves(self._function(*arguments, **keywords))
        if len(results) != len(self._results):
            raise TypeError(f"it returned {len(results)} arrays instead of {len(self._results)}")
        made: list[Buffer] = []
        for result, spec in zip(results, self._results, strict=True):
            made += _pieces(result, spec, devices)
        return made


@contextlib.contextmanager
def _wide_types(*specs: Sequence[Any]) -> Iterator[None]:
    """Lets JAX have types of 64 bits if an argument or result does."""
    before: bool = jax.config.read("jax_enable_x64")
    types = [str(spec.dtype) for some in specs for spec in some]
    jax.config.update("jax_enable_x64", any("64" in t or t == "complex128" for t in types))
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def _array(spec: Any, pieces: Sequence[tuple[Buffer, int]]) -> jax.Array:
    devices = {device.id: device for device in jax.devices()}
    shape = spec.sharding.shard_shape(spec.shape)
    parts = [
        jax.device_put(np.frombuffer(buffer, spec.dtype).reshape(shape), devices[number])
        for buffer, number in pieces
    ]
    return jax.make_array_from_single_device_arrays(spec.shape, spec.sharding, parts)


def _pieces(result: Any, spec: Any, device_ids: Sequence[int]) -> list[Buffer]:
    if not isinstance(result, jax.Array):
        raise TypeError(f"it returned {type(result).__name__}, not a jax.Array")
    if (result.shape, result.dtype) != (spec.shape, spec.dtype):
        raise TypeError(
            f"it returned {result.dtype}{list(result.shape)} instead of "
            f"{spec.dtype}{list(spec.shape)}"
        )
    parts = {shard.device.id: shard.data for shard in result.addressable_shards}
    if set(parts) != set(device_ids):
        raise TypeError(f"it returned an array on devices {sorted(parts)}, not {device_ids}")
    return [_bytes(np.asarray(parts[number])) for number in device_ids]


def _bytes(piece: np.ndarray) -> Buffer:
    if isinstance(piece.dtype, np.dtypes.StringDType):
        if piece.shape:
            raise TypeError(f"it returned strings of shape {piece.shape}, not a single one")
        return str(piece.item()).encode()
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data


def _serve(proxy: socket.socket) -> None:
    functions: dict[int, Function] = {}
    while (head := receive_head(proxy)) is not None:
        buffers = [receive_buffer(proxy, size) for size in head["sizes"]]
        if "drop" in head:
            functions.pop(head["drop"], None)
            continue
        made: list[Buffer] = []
        try:
            if "load" in head:
                functions[head["load"]] = Function(bytes(buffers[0]))
            else:
                made = functions[head["call"]].call(buffers, head["devices"])
            beginning = encode({}, sizes_of(made))
        except Exception as error:  # noqa: BLE001 - the client gets it, whatever it is
            traceback.print_exc()
            beginning, made = encode({"error": f"{type(error).__name__}: {error}"[:_TEXT]}), []
        send(proxy, beginning, made)


def main(descriptor: int, devices: int, parent: int) -> None:
    """Serves until the proxy closes the socket, or ends."""
    watch = exit_with_parent(parent, lambda: os._exit(0))
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    with contextlib.suppress(ConnectionError), socket.socket(fileno=descriptor) as proxy:
        # Processes that functions start do not get it, and forked ones never answer.
        proxy.set_inheritable(False)
        os.register_at_fork(after_in_child=proxy.close)
        _serve(proxy)
    if watch is not None:
        watch.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
