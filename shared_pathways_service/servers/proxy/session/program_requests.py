"""Handles requests that compile, run and delete programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    array_gone,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.engine.compiled_program import Program
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.proxy.execution.started_operation import StartedOperation
from shared_pathways_service.servers.proxy.execution.values import Value
from shared_pathways_service.servers.proxy.execution.virtual_slices import Epoch
from shared_pathways_service.servers.proxy.session.colocated_programs import colocated_program
from shared_pathways_service.servers.proxy.session.other_programs import colocated_python, refusal
from shared_pathways_service.servers.proxy.session.session import Call, Handler, Session
from shared_pathways_service.servers.xla.debug_options import own_debug_options
from shared_pathways_service.servers.xla.file_options import without_files

__all__ = ["HANDLERS", "NAMED_RESULTS"]

#: From this version on a client needs a program's result types only once.
_OUTPUTS_ONCE = 25
_PROGRAM = "xla::ifrt::XlaProgram"


def _compile(session: Session, request: proxy_pb2.CompileRequest, call: Call) -> bool:
    if request.host_callbacks:
        raise StatusError(Code.UNIMPLEMENTED, "programs with host callbacks are not supported")
    if request.program.type_name != _PROGRAM:
        return _load_function(session, request.program, call)
    engine = session.engine
    slices: tuple[int, ...] = ()
    if not engine.computes_here:
        slices = engine.compiler.slices(request.compile_options.data)
    handle = session.new_handle()
    future = session.new_handle()
    session.compiling.update((handle, future))

    def compile_and_answer() -> None:
        options = _options(session, request.compile_options.data)
        program = engine.compiler.compile(request.program.data, options, session.callbacks)
        session.compiling.difference_update((handle, future))
        _store(session, program, call, handle, future)
        call.answer()

    def fail(error: StatusError) -> None:
        session.compiling.difference_update((handle, future))
        call.fail(error)

    engine.compilations.put(
        session.session_id, compile_and_answer, fail, lambda: engine.openings(slices)
    )
    return True


def _store(session: Session, program: Program, call: Call, handle: int, future: int) -> None:
    response = call.response.compile_response
    response.loaded_executable_handle = handle
    response.ready_future_handle = future
    response.name = program.name
    response.num_devices = len(program.device_ids)
    response.device_ids.extend(program.device_ids)
    response.addressable_device_ids.extend(program.device_ids)
    response.fingerprint_value = program.executable.fingerprint
    session.programs[handle] = program
    session.futures[future] = None


def _load_function(session: Session, program: core_pb2.Serialized, call: Call) -> bool:
    """Answers at once: there is nothing to compile."""
    custom = colocated_python(program) if session.engine.runs_python else None
    if custom is None:
        raise refusal(program)
    handle, future = session.new_handle(), session.new_handle()
    _store(session, colocated_program(session, custom, handle), call, handle, future)
    call.answer()
    return True


def _options(session: Session, serialized: bytes) -> bytes:
    """Returns an XlaCompileOptionsProto without options of files; logs the dropped ones once."""
    options = core_pb2.XlaCompileOptionsProto.FromString(serialized)
    if options.outputs_bundle_slice_sizes:
        raise StatusError(
            Code.UNIMPLEMENTED,
            "compile options: outputs_bundle_slice_sizes is not supported; leave it empty",
        )
    own = own_debug_options()
    options.compile_options, ignored = without_files(options.compile_options, own)
    if ignored and not session.logged_ignored_options:
        session.logged_ignored_options = True
        glog(
            "W",
            f"Compile options of a client are ignored, as only a proxy's own flags may make it "
            f"write or read files: {', '.join(ignored)}",
        )
    return options.SerializeToString()


def _execute(
    session: Session, request: proxy_pb2.LoadedExecutableExecuteRequest, call: Call
) -> None:
    program = session.program(request.loaded_executable_handle)
    if program.deleted:
        raise StatusError(Code.FAILED_PRECONDITION, f"program {program.name} has been deleted")
    arguments = [session.value(handle) for handle in request.args_handles]
    if len(arguments) != len(program.parameters):
        raise invalid_argument(
            f"program {program.name} takes {len(program.parameters)} arguments, "
            f"not {len(arguments)}"
        )
    named = request.result_array_handle
    if named and len(named) != len(program.results):
        raise invalid_argument(
            f"program {program.name} has {len(program.results)} results, not {len(named)}"
        )
    epochs = session.engine.slices.epochs(program.slices)
    results = [Value(spec, epochs) for spec in program.results]
    donated: list[int] = []
    if program.donated:
        kept = set(request.execute_options.non_donatable_input_indices)
        donated = [index for index in program.donated if index not in kept]
        _check_donated(arguments, donated)
    session.check_room(len(results))
    operation = _operation(session, program, arguments, results, donated, epochs=epochs)
    for index in donated:
        session.arrays[request.args_handles[index]] = arguments[index].tombstone()
    handles = [session.store(value, handle) for value, handle in zip(
        results, named or [0] * len(results), strict=True)]  # fmt: skip
    response = call.response.loaded_executable_execute_response
    response.SetInParent()
    if request.result_status_handle:
        session.executions[request.result_status_handle] = operation
        response.status_handle = request.result_status_handle
    elif request.execute_options.fill_status:
        response.status_handle = session.new_handle()
        session.executions[response.status_handle] = operation
    operation.start()
    if not (named and program.sent_result_types and session.version >= _OUTPUTS_ONCE):
        program.sent_result_types = True
        _describe_outputs(program, handles, response)


def _operation(
    session: Session,
    program: Program,
    arguments: Sequence[Value],
    results: Sequence[Value],
    donated: Sequence[int],
    *,
    epochs: tuple[Epoch, ...],
) -> Operation:
    """Returns the run of a program, which is started if it need not be waited for.

    (`epochs` are those of the results: a placement may have come meanwhile.)
    """
    after = [r for index in donated for r in arguments[index].readers or ()] if donated else ()
    start = program.start
    # (Charges for a run count until its end, and copies of arguments are waited for.)
    is_charged = session.engine.memory.limit or len(donated) < len(program.donated)
    if start is not None and not is_charged and len(program.slices) == 1:
        return StartedOperation(
            program.name,
            lambda on_end: start(_arrays(program, arguments, donated), on_end),
            nbytes=program.all_bytes,
            pace=program.pace,
            inputs=arguments,
            outputs=results,
            epochs=epochs,
            session_id=session.session_id,
            after=after,
            # (Other arguments are adopted first, which is waited for.)
            quick=start.is_quick and _are_at_home(program, arguments),
        )
    work = _run(session, program, arguments, results, donated)
    callbacks = program.callbacks
    operation = Operation(
        program.name,
        # (Called once the operation exists, which callbacks refer to.)
        work if callbacks is None else lambda: callbacks.run(operation, work),
        inputs=arguments,
        outputs=results,
        epochs=epochs,
        session_id=session.session_id,
        after=after,
        quick=program.quick and (callbacks is None or callbacks.never_wait),
        steps_aside=callbacks is not None,
    )
    return operation


def _are_at_home(program: Program, arguments: Sequence[Value]) -> bool:
    # (A loop, as a generator costs more than the few comparisons.)
    for value in arguments:  # noqa: SIM110
        if value.client is not program.client:
            return False
    return True


def _describe_outputs(
    program: Program, handles: Sequence[int], response: proxy_pb2.LoadedExecutableExecuteResponse
) -> None:
    for spec, handle in zip(program.results, handles, strict=True):
        output = response.outputs.add()
        output.dtype.kind = spec.kind  # type: ignore[assignment]
        output.shape.dims.extend(spec.shape)
        output.sharding.CopyFrom(spec.placing.proto)
        output.array_handle = handle


def _run(
    session: Session,
    program: Program,
    arguments: Sequence[Value],
    results: Sequence[Value],
    donated: Sequence[int],
) -> Callable[[], Sequence[Any]]:
    engine = session.engine
    kept = program.donated.difference(donated)
    if not engine.memory.limit and not kept:
        return lambda: program.run(_arrays(program, arguments, donated))

    def run() -> Sequence[Any]:
        copied = sum(arguments[index].known_spec().shard_bytes() for index in kept)
        running, charges = program.admit(engine.memory, copied)
        for value, charge in zip(results, charges, strict=True):
            value.charge = charge
        arrays = _arrays(program, arguments, donated)
        for index in kept:
            # XLA takes the memory of any donated argument: give it a copy.
            spec = arguments[index].known_spec()
            client = spec.placing.client
            arrays[index] = client.copy(spec, client.parts(arrays[index]))
        made = program.run(arrays)
        for index in donated:
            # Now the charge is the results': a remaining reference to the value must not count it
            # again.
            arguments[index].charge = None
        del running
        return made

    return run


def _arrays(program: Program, arguments: Sequence[Value], donated: Sequence[int]) -> list[Any]:
    arrays = []
    shared = False
    for index, value in enumerate(arguments):
        spec = value.known_spec()
        program.check(index, spec)
        shared = shared or value.shared
        is_at_home = value.client is spec.placing.client
        arrays.append(value.array if is_at_home else value.at_home())
    if shared:
        _check_shared(program, arguments, arrays, donated)
    return arrays


# XLA refuses these two cases as well, but crashes over several devices.


def _check_donated(arguments: Sequence[Value], donated: Sequence[int]) -> None:
    if len(set(map(id, arguments))) == len(arguments):
        return
    for index in donated:
        if sum(value is arguments[index] for value in arguments) > 1:
            raise invalid_argument(
                f"argument {index} is donated, and is also another argument of the same call"
            )


def _check_shared(
    program: Program, arguments: Sequence[Value], arrays: Sequence[Any], donated: Sequence[int]
) -> None:
    """As `_check_donated`, for arrays that are views of others."""
    shared = [index for index, value in enumerate(arguments) if value.shared]
    if any(program.client.is_deleted(arrays[index]) for index in shared):
        raise array_gone()
    if not donated:
        return
    taken: set[int] = set()
    for index in (*donated, *(index for index in shared if index not in donated)):
        found = program.client.addresses(arrays[index])
        if not taken.isdisjoint(found):
            raise invalid_argument(f"argument {index} shares its memory with one that is donated")
        if index in donated:
            taken.update(found)


def _fetch_result(
    session: Session, request: proxy_pb2.LoadedExecutableFetchExecuteResultRequest, call: Call
) -> bool:
    handle = request.result_status_handle
    operation = session.executions.pop(handle, None)
    if operation is None:
        raise StatusError(Code.NOT_FOUND, f"Unknown execution status handle: {handle}")
    call.response.loaded_executable_fetch_execute_result_response.SetInParent()
    # (Clients wait for the results, and look at a fetched status at some time.)
    if not operation.add_callback(lambda: call.finish(operation.error), is_urgent=False):
        call.finish(operation.error)
    return True


def _delete(session: Session, request: proxy_pb2.LoadedExecutableDeleteRequest, call: Call) -> None:
    session.program(request.loaded_executable_handle).deleted = True
    future = session.new_handle()
    session.futures[future] = None
    call.response.loaded_executable_delete_response.future_handle = future


def _is_deleted(
    session: Session, request: proxy_pb2.LoadedExecutableIsDeletedRequest, call: Call
) -> None:
    deleted = session.program(request.loaded_executable_handle).deleted
    call.response.loaded_executable_is_deleted_response.is_deleted = deleted


def _destruct(
    session: Session, request: proxy_pb2.LoadedExecutableDestructRequest, call: Call
) -> None:
    program = session.programs.pop(request.loaded_executable_handle, None)
    if program is not None and program.drop is not None:
        # (JAX lets go of a function once another one of the same object has been called: what
        # executes that has to find the object, which the first one may keep alive.)
        session.when_idle(program.drop)
    call.response.loaded_executable_destruct_response.SetInParent()


HANDLERS: dict[str, Handler] = {
    "compile_request": _compile,
    "loaded_executable_execute_request": _execute,
    "loaded_executable_fetch_execute_result_request": _fetch_result,
    "loaded_executable_delete_request": _delete,
    "loaded_executable_is_deleted_request": _is_deleted,
    "loaded_executable_destruct_request": _destruct,
}

NAMED_RESULTS: dict[str, Callable[[Any], Sequence[int]]] = {
    "loaded_executable_execute_request": lambda r: r.result_array_handle
}
