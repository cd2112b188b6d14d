"""Compiles programs: determines their results before they run, and how they run."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.constants import CPU
from shared_pathways_service.protocol.ifrt import core_pb2, xla_pb2
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.dtypes import (
    TOKEN,
    TOKEN_DTYPE,
    dtype_of,
    kind_of_element,
)
from shared_pathways_service.servers.devices.interface import DeviceClient, Executable
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.callbacks.callback_calls import NAMES as CALLBACK_NAMES
from shared_pathways_service.servers.proxy.callbacks.callback_calls import (
    CallbackChecker,
    CallbackMark,
    take_mark,
)
from shared_pathways_service.servers.proxy.callbacks.callbacks import SessionCallbacks
from shared_pathways_service.servers.proxy.callbacks.compile_callbacks import (
    CompileCallbacks,
    Turns,
)
from shared_pathways_service.servers.proxy.callbacks.program_callbacks import ProgramCallbacks
from shared_pathways_service.servers.proxy.engine.compile_cache import CompileCache
from shared_pathways_service.servers.proxy.engine.compiled_program import Parameter, Program
from shared_pathways_service.servers.proxy.execution.values import Spec
from shared_pathways_service.servers.proxy.program_checks.program_checks import check_program
from shared_pathways_service.servers.serving.last_requests_file import Place
from shared_pathways_service.servers.xla import mlir, program_costs
from shared_pathways_service.servers.xla.debug_options import dumps
from shared_pathways_service.servers.xla.hlo_shardings import adapt_options
from shared_pathways_service.servers.xla.shardings import Placings

__all__ = ["Compiler"]


class Compiler:
    """Compiles programs, and counts them and the nanoseconds. Use by one thread at a time.

    Attributes:
      place: Records what is compiled.
      ffi_names: Functions of the user's own libraries that programs may call.
      turns: Lets other programs compile while one waits for its client.
      computes_here: Whether programs run in this process: no others run on a session's thread.
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
        self.ffi_names: frozenset[str] = frozenset()
        self.turns: Turns | None = None
        self.computes_here = True
        self.compiled = 0
        self.compile_ns = 0

    def compile(
        self, program: bytes, options: bytes, calls: SessionCallbacks | None = None
    ) -> Program:
        """Compiles portable StableHLO; without `calls` the client serves no callbacks."""
        raw = core_pb2.XlaCompileOptionsProto.FromString(options).compile_options
        device_ids = self._devices(xla_pb2.CompileOptionsProto.FromString(raw))
        module = mlir.parse(program)
        if self.place is not None:
            self.place.begin(f"the compilation of {mlir.name_of(module)}")
        main = mlir.main_types(module)
        mark = take_mark(module)
        checker = None if mark is None else CallbackChecker(len(mark.names), len(device_ids))
        slices = self._placings.slices(device_ids)
        client = self._placings.client(slices)
        quick = self._is_quick(module, device_ids, mark)
        check = functools.partial(
            check_program,
            platform=client.platform,
            num_devices=len(device_ids),
            ffi_names=self.ffi_names,
        )
        if check(module, callbacks=checker):
            program = mlir.written(module)
        parsed = client.options(raw, device_ids, self._flags)
        adapt_options(parsed, module)
        _check_options(parsed.executable_build_options, main)
        callbacks = None
        if mark is None or checker is None:
            executable = self._executable(client, program, module, parsed, device_ids)
        else:
            if calls is None:
                raise _no_callbacks()
            callbacks = _callbacks(calls, mark, checker)
            compiling = CompileCallbacks(
                calls, mark, module, checker, check=check, turns=self.turns
            )
            with compiling.bound():
                # (Not for programs of the cache, which have no functions.)
                functions = callbacks.functions() if callbacks else ()
                executable = self._compiled(client, module, device_ids, parsed, functions)
        results = self._results(main, executable, device_ids)
        parameters = self._parameters(main, executable, device_ids)
        memory = executable.memory
        return Program(
            name=executable.name,
            executable=executable,
            client=client,
            device_ids=device_ids,
            slices=slices,
            results=results,
            result_bytes=tuple(spec.shard_bytes() for spec in results),
            donated=_donated(main, parameters, executable),
            parameters=parameters,
            extra_bytes=memory.temp_size_in_bytes - memory.alias_size_in_bytes,
            run=executable.runner(results),
            # (On other platforms it may wait on its device for programs of other clients.)
            start=executable.starter(results, is_quick=quick and client.platform == CPU),
            quick=quick and self.computes_here,
            callbacks=callbacks,
        )

    def slices(self, options: bytes) -> tuple[int, ...]:
        """Returns the slices of a program with these options. Thread-safe."""
        raw = core_pb2.XlaCompileOptionsProto.FromString(options).compile_options
        return self._placings.slices(self._devices(xla_pb2.CompileOptionsProto.FromString(raw)))

    def _is_quick(self, module: Any, device_ids: Sequence[int], mark: CallbackMark | None) -> bool:
        # Over several devices XLA waits on threads of its own.
        if len(device_ids) > 1:
            return False
        return program_costs.is_quick(module, frozenset() if mark is None else CALLBACK_NAMES)

    def _executable(
        self,
        client: DeviceClient,
        program: bytes,
        module: Any,
        options: Any,
        device_ids: tuple[int, ...],
    ) -> Executable:
        """Returns the compiled program, from the cache if it is there."""
        cache = self.cache
        # Dumps are made by compiling only, and other proxies have other libraries.
        if cache is None or dumps(options) or self.ffi_names:
            return self._compiled(client, program, device_ids, options)
        # The options contain the client's device numbers, which slices share: so they share
        # programs.
        key = cache.key(client.identity(), options.SerializeAsString(), mlir.canonical(module))
        found = cache.load(key, lambda data: client.load(data, device_ids, options))
        if found is not None:
            return found
        executable = self._compiled(client, program, device_ids, options)
        try:
            data = executable.serialized()
        except Exception as error:  # noqa: BLE001 - some programs have no serialised form
            glog("I", f"A program is not cached: {error}")
        else:
            if data is not None:
                cache.store(key, data)
        return executable

    def _compiled(
        self,
        client: DeviceClient,
        program: Any,
        device_ids: tuple[int, ...],
        options: Any,
        callbacks: Sequence[Callable[..., Any]] = (),
    ) -> Executable:
        begin = time.perf_counter_ns()
        executable = client.compile(program, device_ids, options, callbacks)
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
            raise invalid_argument("compile options without a device assignment")
        self._placings.check(ids)
        return ids

    def _results(
        self, main: mlir.MainTypes, executable: Executable, device_ids: tuple[int, ...]
    ) -> tuple[Spec, ...]:
        if not main.results:  # XLA gives one sharding for no results over several devices
            return ()
        (kinds,) = executable.result_memory_kinds()
        if len(device_ids) == 1:
            placings = [self._placings.single(device_ids[0], kind) for kind in kinds]
        else:
            shardings = executable.result_shardings()
            if shardings is None or len(shardings) != len(main.results):
                raise StatusError(Code.INTERNAL, "XLA gave no sharding of the program's results")
            placings = [
                self._placings.hlo(device_ids, sharding, kind)
                for sharding, kind in zip(shardings, kinds, strict=True)
            ]
        return tuple(
            Spec(*_type(result), result.shape, placing)
            for result, placing in zip(main.results, placings, strict=True)
        )

    def _parameters(
        self, main: mlir.MainTypes, executable: Executable, device_ids: tuple[int, ...]
    ) -> tuple[Parameter, ...]:
        if not main.arguments:  # XLA gives a sharding for no arguments of a cached program
            return ()
        if len(device_ids) == 1:
            return tuple(Parameter(*_type(argument), argument.shape) for argument in main.arguments)
        shardings = executable.parameter_shardings()
        if shardings is None or len(shardings) != len(main.arguments):
            raise StatusError(Code.INTERNAL, "XLA gave no sharding of the program's arguments")
        found = []
        for argument, sharding in zip(main.arguments, shardings, strict=True):
            placing = self._placings.hlo(device_ids, sharding)
            found.append(Parameter(*_type(argument), placing.shard_shape(argument.shape)))
        return tuple(found)


def _no_callbacks() -> StatusError:
    return StatusError(
        Code.FAILED_PRECONDITION,
        "the program calls functions of its client, but the session named no sps_callbacks",
    )


def _callbacks(
    calls: SessionCallbacks, mark: CallbackMark, checker: CallbackChecker
) -> ProgramCallbacks | None:
    """Returns the callbacks at run time; None if all calls are made at compile time."""
    if checker.compile_calls.found and not checker.runs_callbacks:
        return None
    is_spread = checker.num_devices > 1
    return ProgramCallbacks(calls, mark.program, checker.types(), mark.names, is_spread=is_spread)


def _check_options(build: Any, main: mlir.MainTypes) -> None:
    """Refuses executable_build_options with which XLA crashes."""
    if build.use_auto_spmd_partitioning:
        raise StatusError(
            Code.UNIMPLEMENTED,
            "use_auto_spmd_partitioning: the XLA of jaxlib has no such partitioner",
        )
    for what, flags, count in (
        ("parameters", build.allow_spmd_sharding_propagation_to_parameters, len(main.arguments)),
        ("output", build.allow_spmd_sharding_propagation_to_output, len(main.results)),
    ):
        # No value is XLA's own choice, and one value is for all.
        if len(flags) > 1 and len(flags) != count:
            raise invalid_argument(
                f"allow_spmd_sharding_propagation_to_{what} has {len(flags)} values: one for all, "
                f"or one for each of {count}"
            )


def _type(tensor: mlir.TensorType) -> tuple[int, Any]:
    """Returns the DTypeProto.Kind and numpy's type of an argument or result."""
    if tensor.element == "token":
        return TOKEN, TOKEN_DTYPE
    kind = kind_of_element(tensor.element)
    return kind, dtype_of(kind)


def _donated(
    main: mlir.MainTypes, parameters: Sequence[Parameter], executable: Executable
) -> frozenset[int]:
    """Returns the arguments whose memory a program takes, of those that are offered.

    XLA does not take what no result fits into, and JAX's client treats the returned ones as
    deleted.
    """
    offered = [parameters[index] for index in main.donated]
    aliased_bytes = executable.memory.alias_size_in_bytes
    if not offered or not aliased_bytes:
        return frozenset()
    if aliased_bytes == sum(math.prod(p.shape) * p.dtype.itemsize for p in offered):
        return frozenset(main.donated)
    return executable.aliased_parameters()
