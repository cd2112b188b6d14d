"""Reads compiled programs: their bytes, shardings, and which arguments they reuse."""

from __future__ import annotations

import re
import sys
from typing import Any

from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.proxy.xla.named_shardings import as_tiles
from shared_pathways_service.servers.proxy.xla.xla_internals import sharding_proto

__all__ = ["aliased_parameters", "op_sharding", "serialized"]

#: The most object files of a program that can be loaded again. XLA's loader recurses once per file,
#: with 2.1 kB of a thread's stack that cannot be enlarged: with 2 MiB on Linux the process ends at
#: 998.
_LOADABLE_OBJECTS = 400 if sys.platform == "linux" else 100
_OBJECT_FILES = (b"\x7fELF", b"\xcf\xfa\xed\xfe")
_ALIASES = re.compile(r"input_output_alias=\{((?:[^{}]|\{[^{}]*\})*)\}")
_ALIASED_PARAMETER = re.compile(r"\((\d+), \{")


def serialized(executable: Any) -> bytes | None:
    """Returns a program in the form for `xla.XlaClient.load`; None if it could not be loaded."""
    data: bytes = executable.serialize()
    if executable.local_devices()[0].platform != "cpu":
        return data
    objects = sum(data.count(magic) for magic in _OBJECT_FILES)
    return data if objects <= _LOADABLE_OBJECTS else None


def aliased_parameters(executable: Any) -> frozenset[int]:
    """Returns the indices of arguments whose memory the program takes for its results.

    Slow: the whole program is printed, as jaxlib gives it in no other form.
    """
    header = executable.hlo_modules()[0].to_string().split("\n", 1)[0]
    found = _ALIASES.search(header)
    return frozenset(map(int, _ALIASED_PARAMETER.findall(found[1]))) if found else frozenset()


def op_sharding(sharding: Any) -> bytes:
    """Returns a sharding of an executable as a serialised xla.OpSharding, in tiles."""
    return as_tiles(xla_pb2.OpSharding.FromString(sharding_proto(sharding))).SerializeToString()
