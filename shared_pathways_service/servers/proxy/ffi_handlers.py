"""Loads a user's own FFI handlers into this proxy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from shared_pathways_service.api.ffi_targets import read_ffi_targets
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.serving.ffi_libraries import find_library
from shared_pathways_service.servers.xla.platforms import CPU

__all__ = ["load_handlers"]

_FIELD = "--ffi_targets"


def load_handlers(directory: str, texts: Sequence[str], platform: str) -> frozenset[str]:
    """Registers handlers, each given as ``NAME=LIBRARY:SYMBOL``; returns their names.

    Raises:
      InvalidRequestError: A library or its function cannot be used, or the name is taken.
    """
    targets = read_ffi_targets(texts, field=_FIELD)
    if not targets:
        return frozenset()
    if platform != CPU.name:
        raise InvalidRequestError(_FIELD, str(targets[0]), "a proxy that computes on CPUs")
    from jax import ffi  # noqa: PLC0415 - slow, and seldom needed

    from shared_pathways_service.servers.proxy.program_checks.custom_calls import is_reserved  # noqa: PLC0415

    for target in targets:
        if is_reserved(target.name):
            raise InvalidRequestError(_FIELD, str(target), "a name that JAX or XLA does not use")
        path = find_library(directory, target, field=_FIELD)
        try:
            handler = getattr(ctypes.CDLL(str(path)), target.symbol)
            ffi.register_ffi_target(target.name, ffi.pycapsule(handler), platform="cpu")
        except Exception as error:
            raise InvalidRequestError(
                _FIELD, str(target), f"a library with an FFI handler of this name: {error}"
            ) from error
        glog("I", f"Custom call {target.name} is {target.symbol} of {path}")
    return frozenset(target.name for target in targets)
