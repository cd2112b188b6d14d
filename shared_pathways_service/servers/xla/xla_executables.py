"""Compiled programs in this process: their bytes, shardings, costs, and how they run."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxlib import xla_client

from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.devices.interface import Array, ArraySpec
from shared_pathways_service.servers.xla.named_shardings import as_tiles
from shared_pathways_service.servers.xla.profiler import naming_runs
from shared_pathways_service.servers.xla.xla_internals import result_handler, sharding_proto

__all__ = ["XlaExecutable"]

#: The most object files of a program that can be loaded again. XLA's loader recurses once per file,
#: with 2.1 kB of a thread's stack that cannot be enlarged: with 2 MiB on Linux the process ends at
#: 998.
_LOADABLE_OBJECTS = 400 if sys.platform == "linux" else 100
_OBJECT_FILES = (b"\x7fELF", b"\xcf\xfa\xed\xfe")
_ALIASES = re.compile(r"input_output_alias=\{((?:[^{}]|\{[^{}]*\})*)\}")
_ALIASED_PARAMETER = re.compile(r"\((\d+), \{")


class XlaExecutable:
    """An `Executable` of jaxlib's.

    Args:
      loaded: The executable.
      devices: The devices here of its client: ours, by XLA's numbers.
    """

    def __init__(self, loaded: Any, devices: Mapping[int, int]) -> None:
        self._loaded = loaded
        self._devices = devices
        self.name: str = loaded.hlo_modules()[0].name
        self.fingerprint: bytes = loaded.fingerprint or b""
        self.memory = _memory(loaded.get_compiled_memory_stats())
        self.code_bytes: int = loaded.size_of_generated_code_in_bytes()

    def parameter_shardings(self) -> list[bytes] | None:
        """Returns the shardings in tiles."""
        return _op_shardings(self._loaded.get_parameter_shardings())

    def result_shardings(self) -> list[bytes] | None:
        """Returns the shardings in tiles."""
        return _op_shardings(self._loaded.get_output_shardings())

    def result_memory_kinds(self) -> list[list[str]]:
        """Returns the memory of each result, for each module of the program."""
        return [list(kinds) for kinds in self._loaded.get_output_memory_kinds()]

    def parameter_layouts(self) -> list[str]:
        """Returns their texts, the only form that jaxlib gives."""
        return [str(layout) for layout in self._loaded.get_parameter_layouts()]

    def result_layouts(self) -> list[str]:
        """Returns their texts, the only form that jaxlib gives."""
        return [str(layout) for layout in self._loaded.get_output_layouts()]

    def aliased_parameters(self) -> frozenset[int]:
        """Returns the indices of arguments whose memory the program takes for its results.

        Slow: the whole program is printed, as jaxlib gives it in no other form.
        """
        header = self._loaded.hlo_modules()[0].to_string().split("\n", 1)[0]
        found = _ALIASES.search(header)
        return frozenset(map(int, _ALIASED_PARAMETER.findall(found[1]))) if found else frozenset()

    def memory_report(self) -> xla_pb2.CompiledMemoryStatsProto:
        """Returns `memory` with XLA's assignment of buffers, which can be large."""
        report = xla_pb2.CompiledMemoryStatsProto()
        report.CopyFrom(self.memory)
        stats = self._loaded.get_compiled_memory_stats()
        report.serialized_buffer_assignment = stats.serialized_buffer_assignment_proto or b""
        return report

    def costs(self) -> Mapping[str, object]:
        """Returns XLA's estimates, by their names."""
        costs: Mapping[str, object] = self._loaded.cost_analysis()
        return costs

    def text(self) -> str:
        """Returns the optimised program as text."""
        text: str = self._loaded.get_hlo_text()
        return text

    def serialized(self) -> bytes | None:
        """Returns the form for `XlaClient.load`; None if it could not be loaded."""
        data: bytes = self._loaded.serialize()
        if self._loaded.local_devices()[0].platform != "cpu":
            return data
        objects = sum(data.count(magic) for magic in _OBJECT_FILES)
        return data if objects <= _LOADABLE_OBJECTS else None

    def runner(self, results: Sequence[ArraySpec]) -> Callable[[list[Array]], list[Array]]:
        """Returns a function that runs the program to its end."""
        execute = naming_runs(self._loaded.execute_sharded, self._devices)
        handlers = [
            result_handler(spec.shape, spec.dtype, spec.placing.sharding) for spec in results
        ]
        if not handlers:

            def run_for_effect(arguments: list[Array]) -> list[Array]:
                ran = execute(arguments, with_tokens=True)
                ran.consume_token().block_until_ready()
                return []

            return run_for_effect

        def run(arguments: list[Array]) -> list[Array]:
            ran = execute(arguments)
            arrays: list[Array] = ran.consume_with_handlers(handlers)
            xla_client.batched_block_until_ready(arrays)
            return arrays

        return run

    def starter(self, results: Sequence[ArraySpec], *, is_quick: bool) -> None:
        """Has none: whoever computes in this process runs programs to their end."""


def _op_shardings(shardings: Sequence[Any] | None) -> list[bytes] | None:
    if shardings is None:
        return None
    protos = (xla_pb2.OpSharding.FromString(sharding_proto(sharding)) for sharding in shardings)
    return [as_tiles(proto).SerializeToString() for proto in protos]


def _memory(stats: Any) -> xla_pb2.CompiledMemoryStatsProto:
    message = xla_pb2.CompiledMemoryStatsProto()
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_INT64 and hasattr(stats, field.name):
            setattr(message, field.name, getattr(stats, field.name))
    return message
