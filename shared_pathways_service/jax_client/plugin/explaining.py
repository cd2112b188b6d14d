"""Adds what to do instead to errors of JAX about what a proxy does not run.

Like the plug-in the file needs the standard library and JAX only: both are copied together.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from . import callbacks

__all__ = ["explain"]

#: What JAX's client says, and no more, when a program calls back into Python.
_NO_CALLBACKS = "Unsupported host callback type"
_INSTEAD_OF_CALLBACKS = (
    "jax.debug.print, jax.debug.callback, jax.debug.breakpoint, jax.pure_callback and io_callback "
    "do not work inside this program: {reason}. Return the value from the program and print it "
    "outside. To debug, run the function under "
    'jax.disable_jit(), or under jax.default_device(jax.devices("cpu")[0]), unless the local '
    "devices were switched off (local_devices=False, or JAX_PLATFORMS=proxy without cpu)."
)
#: What XLA says where a program calls a library that its process has not loaded: a proxy's, or
#: this one, which the error does not tell.
_NO_HANDLER = "No FFI handler registered"
_INSTEAD_OF_HANDLERS = (
    "If the program runs on a proxy: jax.ffi.register_ffi_target registers a function in this "
    'process only. Run the program on this machine (jax.devices("cpu")), or on an embedded service '
    "that loads the library (sps serve --allow-ffi-libraries DIR)."
)


@functools.cache
def explain() -> None:
    """Has these errors of JAX say what to do instead, for good."""
    compiler: Any = importlib.import_module("jax._src.compiler")
    # (An explanation is not worth failing for.)
    if register := getattr(compiler, "register_xla_runtime_error_handler", None):
        register(_explained)


def _explained(error: Exception) -> Exception | None:
    """Returns what is raised in an error's place; None: the error itself."""
    if _NO_HANDLER in str(error):
        return type(error)(f"{error}\n{_INSTEAD_OF_HANDLERS}")
    if _NO_CALLBACKS not in str(error):
        return None
    return type(error)(f"{error}\n{_INSTEAD_OF_CALLBACKS.format(reason=callbacks.reason())}")
