"""The debug options of this process and of a program, as jaxlib has them."""

from __future__ import annotations

import functools
from typing import Any

from jaxlib import _jax

from shared_pathways_service.protocol.ifrt import xla_pb2

__all__ = ["dumps", "own_debug_options"]


def dumps(options: Any) -> bool:
    """Whether these options make XLA write dumps while it compiles."""
    if options.executable_build_options.debug_options.xla_dump_to:
        return True
    # (XLA_FLAGS of the environment are in the debug options of the compiling process.)
    names = [name for name, _ in options.env_option_overrides]
    return any(name.startswith("xla_dump_") for name in names)


@functools.cache
def own_debug_options() -> bytes:
    """Returns this process's serialised debug options: XLA's defaults and its flags."""
    options = _jax.CompileOptions()
    _ = options.executable_build_options.debug_options  # (Created when it is read first.)
    message = xla_pb2.CompileOptionsProto.FromString(options.SerializeAsString())
    return message.executable_build_options.debug_options.SerializeToString()
