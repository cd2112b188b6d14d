"""Adds explanations to JAX's errors: operations that a proxy does not run, ended connections."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from . import callbacks, transfer_files
from .attempts import runtime_error

__all__ = ["explain", "noting_the_end"]

#: The complete message of JAX's client when a program calls back into Python.
_NO_CALLBACKS = "Unsupported host callback type"
_INSTEAD_OF_CALLBACKS = (
    "jax.debug.print, jax.debug.callback, jax.debug.breakpoint, jax.pure_callback and io_callback "
    "do not work inside this program: {reason}. Return the value from the program and print it "
    "outside. To debug, run the function under "
    'jax.disable_jit(), or under jax.default_device(jax.devices("cpu")[0]), unless the local '
    "devices were switched off (local_devices=False, or JAX_PLATFORMS=proxy without cpu)."
)
#: XLA's message when a program calls a library that its process has not loaded. The process may be
#: a proxy or this one, which the error does not say.
_NO_HANDLER = "No FFI handler registered"
_INSTEAD_OF_HANDLERS = (
    "If the program runs on a proxy: jax.ffi.register_ffi_target registers a function in this "
    'process only. Run the program on this machine (jax.devices("cpu")), or on an embedded service '
    "that loads the library (sps serve --allow-ffi-libraries DIR)."
)
#: Begins the client's message, after its code, when it uses a connection that has ended.
_ENDED = "Connection to IFRT proxy server was terminated"
_AFTER_THE_END = (
    "The connection with the slices has ended, and the arrays on them are gone. Copy arrays with "
    "jax.device_get before the connection ends. A process that was started during the connection, "
    "such as a worker of a pool (joblib keeps its workers), cannot use JAX after it: end the pool "
    "with the connection."
)
_LEAST_ROOM = 64 << 20
_NO_ROOM = (
    "The shared memory of {directory} is full, perhaps with files of other programs. Large arrays "
    "are passed to the proxy there, and one that finds no room ends the connection. Free some, or "
    "have the service started with SPS_SHARED_MEMORY_DIR=none."
)


@functools.cache
def explain() -> None:
    """Makes these errors of JAX name alternatives, permanently."""
    compiler: Any = importlib.import_module("jax._src.compiler")
    # (A failure of the explanation must not end the program.)
    if register := getattr(compiler, "register_xla_runtime_error_handler", None):
        register(_explained)


def _explained(error: Exception) -> Exception | None:
    """Returns the error to raise instead; None: the original error."""
    _note_the_end(error)
    if _NO_HANDLER in str(error):
        return type(error)(f"{error}\n{_INSTEAD_OF_HANDLERS}")
    if _NO_CALLBACKS not in str(error):
        return None
    return type(error)(f"{error}\n{_INSTEAD_OF_CALLBACKS.format(reason=callbacks.reason())}")


def noting_the_end(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a wait for values: its error says what to do if the connection has ended."""

    @functools.wraps(original, assigned=("__name__", "__doc__"))
    def waited(*arguments: Any) -> Any:
        try:
            return original(*arguments)
        except runtime_error() as error:
            _note_the_end(error)
            raise

    return waited


def _note_the_end(error: Exception) -> None:
    if _ENDED in str(error) and _AFTER_THE_END not in getattr(error, "__notes__", ()):
        error.add_note(_AFTER_THE_END)
        if directory := _full_shared_memory():
            error.add_note(_NO_ROOM.format(directory=directory))


def _full_shared_memory() -> str | None:
    """Returns the directory in which JAX's client leaves large arrays, if it has hardly any room.

    The client gives up its session then, and does not say why.
    """
    directory = transfer_files.present_directory()
    if directory is None:
        return None
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return str(directory) if found.f_bavail * found.f_frsize < _LEAST_ROOM else None
