"""Compiled programs: what is known of their results before they run, and how they run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.protocol.ifrt import core_pb2, xla_pb2
from shared_pathways_service.servers.glog import glog
from shared_pathways_service.servers.last_requests import Place
from shared_pathways_service.servers.proxy import xla
from shared_pathways_service.servers.proxy.compile_cache import CompileCache
from shared_pathways_service.servers.proxy.dtypes import dtype_of, kind_of_element
from shared_pathways_service.servers.proxy.memory import Charge, DeviceMemory
from shared_pathways_service.servers.proxy.shardings import Placings
from shared_pathways_service.servers.proxy.status import Code, StatusError
from shared_pathways_service.servers.proxy.values import Spec

__all__ = ["Compiler", "Program"]


@dataclasses.dataclass(slots=True)
class Program:
    """A compiled program.

    Attributes:
      name: Of its module.
      executable: XLA's.
      device_ids: Where it runs, in the order of the device assignment.
      slices: The virtual slices concerned.
      results: Type, shape and placing of each result.
      result_bytes: Of each result, on each device.
      donated: Indices of arguments whose memory the program may take.
      arguments: How many it takes.
      extra_bytes: Memory a device needs beyond the results while it runs, donations taken off.
      run: Runs it to its end.
      outputs_told: Whether the client has been told of the results' types.
      deleted: Whether the client has asked for its deletion.
    """

    name: str
    executable: Any
    device_ids: tuple[int, ...]
    slices: tuple[int, ...]
    results: tuple[Spec, ...]
    result_bytes: tuple[int, ...]
    donated: frozenset[int]
    arguments: int
    extra_bytes: int
    run: Callable[[list[Any]], list[Any]]
    outputs_told: bool = False
    deleted: bool = False

    def admit(self, memory: DeviceMemory, copied: int) -> tuple[Charge | None, list[Charge | None]]:
        """Takes the memory that one run needs.

        Args:
          memory: What is taken from.
          copied: Bytes on each device of arguments that the program might take, and may not.

        Returns:
          What to hold while the program runs, and what to hold with each result.

        Raises:
          StatusError: RESOURCE_EXHAUSTED, naming the program.
        """
        needed = max(sum(self.result_bytes) + self.extra_bytes + copied, 0)
        charge = memory.charge(self.device_ids, needed, f"program {self.name}")
        if charge is None:
            return None, [None] * len(self.results)
        return charge, [charge.split(nbytes) for nbytes in self.result_bytes]


class Compiler:
    """Compiles programs. One thread at a time.

    Args:
      placings: Of the devices.
      flags: XLA's flags, names and values, for every program.
      cache: Where compiled programs are kept; None: nowhere.

    Attributes:
      cache: The same.
      place: Told what is compiled.
      compiled: How many programs XLA compiled.
      compile_ns: How long it took for that, in nanoseconds.
    """

    def __init__(
        self,
        placings: Placings,
        flags: Sequence[tuple[str, str]] = (),
        cache: CompileCache | None = None,
    ) -> None:
        self._flags = tuple(flags)
        self._placings = placings
        self.cache = cache
        self.place: Place | None = None
        self.compiled = 0
        self.compile_ns = 0

    def compile(self, program: bytes, options: bytes) -> Program:
        """Compiles a program.

        Args:
          program: Portable StableHLO.
          options: A serialised XlaCompileOptionsProto.
        """
        raw = core_pb2.XlaCompileOptionsProto.FromString(options).compile_options
        device_ids = self._devices(xla_pb2.CompileOptionsProto.FromString(raw))
        module = xla.parse(program)
        if self.place is not None:
            self.place.begin(f"the compilation of {xla.name_of(module)}")
        main = xla.main_types(module)
        slices = self._placings.slices(device_ids)
        client = self._placings.client(slices)
        executable = self._executable(client, program, module, raw, device_ids)
        results = self._results(main, executable, device_ids)
        result_bytes = tuple(spec.shard_bytes() for spec in results)
        stats = executable.get_compiled_memory_stats()
        return Program(
            name=executable.hlo_modules()[0].name,
            executable=executable,
            device_ids=device_ids,
            slices=slices,
            results=results,
            result_bytes=result_bytes,
            donated=frozenset(main.donated),
            arguments=len(main.arguments),
            extra_bytes=stats.temp_size_in_bytes - stats.alias_size_in_bytes,
            run=client.runner(executable, results),
        )

    def _executable(
        self,
        client: xla.XlaClient,
        program: bytes,
        module: Any,
        raw: bytes,
        device_ids: tuple[int, ...],
    ) -> Any:
        """Returns XLA's program, of the cache where it is there."""
        options = client.options(raw, device_ids, self._flags)
        cache = self.cache
        # Who asks for dumps wants to see XLA compile.
        if cache is None or xla.dumps(options):
            return self._compiled(client, program, device_ids, options)
        # The options name the devices by their numbers in the client: slices share their programs.
        key = cache.key(client.identity(), options.SerializeAsString(), xla.canonical(module))
        found = cache.load(key, lambda data: client.load(data, device_ids, options))
        if found is not None:
            return found
        executable = self._compiled(client, program, device_ids, options)
        try:
            data = xla.serialized(executable)
        except Exception as error:  # noqa: BLE001 - some programs have no serialised form
            glog("I", f"A program is not kept: {error}")
        else:
            if data is not None:
                cache.store(key, data)
        return executable

    def _compiled(
        self, client: xla.XlaClient, program: bytes, device_ids: tuple[int, ...], options: Any
    ) -> Any:
        begin = time.perf_counter_ns()
        executable = client.compile(program, device_ids, options)
        self.compile_ns += time.perf_counter_ns() - begin
        self.compiled += 1
        return executable

    def _devices(self, options: xla_pb2.CompileOptionsProto) -> tuple[int, ...]:
        build = options.executable_build_options
        assignment = build.device_assignment
        if assignment.replica_count != 1:
            raise StatusError(
                Code.UNIMPLEMENTED,
                f"programs of {assignment.replica_count} replicas: only partitions are supported",
            )
        ids = tuple(c.replica_device_ids[0] for c in assignment.computation_devices)
        if not ids:
            raise StatusError(Code.INVALID_ARGUMENT, "compile options without a device assignment")
        self._placings.check(ids)
        return ids

    def _results(
        self, main: xla.MainTypes, executable: Any, device_ids: tuple[int, ...]
    ) -> tuple[Spec, ...]:
        if len(device_ids) == 1:
            placings = [self._placings.single(device_ids[0])] * len(main.results)
        else:
            shardings: Sequence[Any] | None = executable.get_output_shardings()
            if shardings is None or len(shardings) != len(main.results):
                raise StatusError(Code.INTERNAL, "XLA told no sharding of the program's results")
            placings = [self._placings.hlo(device_ids, xla.op_sharding(s)) for s in shardings]
        specs = []
        for result, placing in zip(main.results, placings, strict=True):
            kind = kind_of_element(result.element)
            specs.append(Spec(kind, dtype_of(kind), result.shape, placing))
        return tuple(specs)
