"""Makes every use of JAX raise an error in forked children of a connected process.

JAX's client of a proxy needs its threads, which a child does not have, and its socket, which the
child shares with its parent: a request of the child would wait forever, and its bytes on the
parent's stream would end the parent. So in a child the sockets are replaced by closed ones, objects
that reference the client are never destroyed (which would also send requests), and every call to
the proxy raises `RuntimeError` at once.

So does every call that needs this machine's CPU, also by a new client. jaxlib's libraries share
state in the process, which a child has as it was at the fork: a lock that a thread of the parent
held then is held forever. All new threads take one of them when they start, as those of the proxy's
client do at any time, and then no program is ever compiled. If the parent has compiled for its CPU,
the next compilation ends the process. What remains is to read finished arrays of this CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from . import sockets
from .timeout_table import timeouts

__all__ = ["check_not_forked", "watch"]

_INSTEAD = (
    'Use JAX in the parent only, or start children with multiprocessing.get_context("spawn") or '
    '("forkserver"), which start a new interpreter'
)
_USE = (
    "this process was forked from one whose JAX is on a proxy, and cannot use JAX: neither the "
    "proxy, as the connection is the parent's, nor this machine's CPU, as JAX's threads and locks "
    f"do not survive a fork. {_INSTEAD}"
)
_CONNECT = (
    "this process was forked from one that had JAX's client of a proxy, and cannot connect itself: "
    f"the client's threads do not survive a fork. {_INSTEAD}"
)

#: Each existing client, even if its connection has ended, and the peer of its sockets; None:
#: unknown.
_clients: weakref.WeakKeyDictionary[Any, sockets.Peer | None] = weakref.WeakKeyDictionary()
#: The parent's clients, in a forked child.
_inherited: list[Any] = []

#: Methods of jaxlib's classes that call the proxy, or need threads.
_CLIENT_METHODS = (
    *("compile", "compile_and_load", "compile_and_load_ifrt_program", "compile_ifrt_program"),
    *("defragment", "deserialize_executable", "get_default_layout", "heap_profile"),
)
_EXECUTABLE_METHODS = (
    *("cost_analysis", "execute", "execute_sharded", "execute_with_token", "fingerprint"),
    *("get_compiled_memory_stats", "get_hlo_text", "get_output_layouts", "get_output_memory_kinds"),
    *("get_output_shardings", "get_parameter_layouts", "get_parameter_shardings", "hlo_modules"),
    *("serialize", "size_of_generated_code_in_bytes"),
)
_ARRAY_METHODS = (
    *("_copy_single_device_array_to_host_async", "_fully_replicated_shard", "_replace_with"),
    *("_rewrap_with_aval_and_sharding", "_single_device_array_to_np_array_did_copy"),
    *("_to_np_array_did_copy", "block_until_ready", "clone", "delete", "is_deleted", "is_ready"),
    *("on_device_size_in_bytes", "unsafe_buffer_pointer", "unsafe_raw_buffer"),
    # (Python 3.11 has no such method: there, numpy waits for an unfinished array of this CPU.)
    "__buffer__",
)
_ARRAY_PROPERTIES = ("_arrays", "_pjrt_layout")
#: Functions of arrays, devices, or shardings, and of new clients of the local CPU.
_FUNCTIONS = (
    *("batched_block_until_ready", "batched_copy_array_to_devices_with_sharding"),
    *("batched_copy_to_host_async", "batched_device_put", "make_cpu_client"),
)


def watch(client: Any, address: str) -> None:
    """Makes forked children refuse to use JAX's client of a proxy at this address."""
    try:
        peer = sockets.peer_at(address, timeouts.FORKED_PEER.s)
    except (OSError, ValueError):  # ValueError: an address of a form that only gRPC knows
        peer = None
    _clients[client] = peer
    _settle()


def check_not_forked() -> None:
    """Raises RuntimeError if this process was forked from one that had a client of a proxy."""
    if _inherited:
        raise RuntimeError(_CONNECT)


@functools.cache
def _settle() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_in_child)


def _after_in_child() -> None:
    """Disconnects the child, before the caller of `os.fork` continues."""
    _renew_threads()
    _inherited.extend(_clients)
    if not _inherited:
        return
    _refuse()
    for client, peer in _clients.items():
        if peer is not None:
            with contextlib.suppress(OSError):  # (no descriptor is left for it)
                sockets.replace(peer)
        _keep((client, *client.live_arrays(), *client.live_executables()))
    _clients.clear()
    # At the end of the process, a client of the local CPU would wait for threads that do not exist.
    # (Not with the table's own look-up, which creates clients.)
    xla_bridge: Any = importlib.import_module("jax._src.xla_bridge")
    _keep(dict.values(xla_bridge._backends))  # noqa: SLF001 - JAX has no public way to these
    factory: Any = getattr(xla_bridge._backend_factories.get("cpu"), "factory", None)  # noqa: SLF001
    if hasattr(factory, "refuse"):
        factory.refuse(_raise)
    # At its end, the process would wait for the parent's work.
    importlib.import_module("jax._src.dispatch").runtime_tokens.clear()
    # Cached programs run without calling any of the refusing methods.
    importlib.import_module("jax").clear_caches()


def _renew_threads() -> None:
    """Gives the compiler's front end threads of this process."""
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    # (Each may be missing in another version of JAX; the parent's pool waits for its threads.)
    if pool := getattr(mlir, "global_thread_pool", None):
        _keep((pool,))
        mlir.global_thread_pool = mlir.ir.ThreadPool()
    if context := getattr(mlir, "_thread_local_context", None):
        _keep((context.value,))
        context.set_local(None)


def _keep(objects: Iterable[Any]) -> None:
    for kept in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _refuse() -> None:
    jaxlib: Any = importlib.import_module("jaxlib._jax")
    xla_client: Any = importlib.import_module("jaxlib.xla_client")
    for owner, names in (
        (jaxlib.Client, _CLIENT_METHODS),
        (jaxlib.LoadedExecutable, _EXECUTABLE_METHODS),
        (jaxlib.Device, ("memory_stats",)),
        (jaxlib.ArrayImpl, ("__init__",)),
        (jaxlib, _FUNCTIONS),
        (xla_client, _FUNCTIONS),
    ):
        for name in names:
            # (Missing parts of another version of JAX must not end the program.)
            if hasattr(owner, name):
                setattr(owner, name, _raise)
    # The compiler's front end, which may still write a program's text, does without threads.
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    mlir.ir.Context.set_thread_pool = lambda context, _pool: context.enable_multithreading(False)
    is_deleted, is_ready = jaxlib.ArrayImpl.is_deleted, jaxlib.ArrayImpl.is_ready

    def is_pending(array: Any) -> bool:
        return not (is_deleted(array) or is_ready(array))

    for name in _ARRAY_METHODS:
        if original := getattr(jaxlib.ArrayImpl, name, None):
            setattr(jaxlib.ArrayImpl, name, _reading(original, is_pending))
    for name in _ARRAY_PROPERTIES:
        if original := getattr(jaxlib.ArrayImpl, name, None):
            read = _reading(original.__get__, is_pending)
            setattr(jaxlib.ArrayImpl, name, property(read, original.__set__))


def _raise(*_args: Any, **_named: Any) -> NoReturn:
    raise RuntimeError(_USE)


def _reading(original: Callable[..., Any], is_pending: Callable[[Any], bool]) -> Callable[..., Any]:
    """Refuses arrays of a proxy, and those of this CPU that the parent has still to compute."""

    def call(array: Any, *args: Any, **named: Any) -> Any:
        if _client_of(array) in _inherited or is_pending(array):
            raise RuntimeError(_USE)
        return original(array, *args, **named)

    return call


def _client_of(array: Any) -> Any:
    with contextlib.suppress(Exception):
        # (`sharding` may be of Python's side.)
        return next(iter(array._sharding.device_set)).client  # noqa: SLF001
    return None
