"""Lets XLA call functions of a client while it compiles a program.

XLA finds the functions by the configuration of a custom call: the address of a function of this
process (`InspectSharding`), or a number that `_partitioners` knows. Both are set here.

While a call is open, other programs are compiled: those of other sessions, and those that the
function itself compiles. XLA crashes if a function that chooses a sharding raises an error. So the
first error is kept, XLA gets an answer with which it can continue, and the compilation fails at its
end.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from jaxlib import xla_client
from jaxlib.mlir import ir

from shared_pathways_service.protocol import callbacks_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import StatusError, from_exception
from shared_pathways_service.servers.proxy.callbacks.callback_calls import (
    CallbackChecker,
    CallbackMark,
)
from shared_pathways_service.servers.proxy.callbacks.callback_messages import (
    BYTES_OF_ANY_LENGTH,
    CallbackTypes,
)
from shared_pathways_service.servers.proxy.callbacks.callbacks import SessionCallbacks
from shared_pathways_service.servers.proxy.callbacks.compile_calls import (
    INSPECT,
    PARTITION,
    CompileCall,
)
from shared_pathways_service.servers.proxy.callbacks.compile_messages import (
    Values,
    call_message,
    describe,
    read_answer,
    read_partition,
    read_results,
)
from shared_pathways_service.servers.xla import mlir
from shared_pathways_service.servers.xla.operation_attributes import CONFIG, TARGET

__all__ = ["CompileCallbacks", "Turns"]

#: The name under which XLA calls our functions; JAX's own name is taken in the same process.
_TARGET = "sps.CustomSPMDPartitioning"
#: The prefix of XLA's error texts when it compiles for the client's own process.
_PREFIX_OF = {INSPECT: "Error calling inspect_sharding: ", PARTITION: "custom_partitioner: "}
#: Types of each function; the argument is ignored.
_TYPES = CallbackTypes((), (BYTES_OF_ANY_LENGTH,))
_numbers = itertools.count(1)
_partitioners: weakref.WeakValueDictionary[bytes, _Partitioner] = weakref.WeakValueDictionary()


class Turns(Protocol):
    """Compiles one program at a time."""

    def step_aside(self) -> None:
        """Lets others compile until `resume`."""

    def resume(self, what: str) -> None:
        """Waits for its turn; records what continues."""


class CompileCallbacks:
    """One program's calls at compile time.

    Args:
      module: The checked program; `bound` changes it.
      check: Refuses a parsed program that the proxy does not accept.
      turns: The turns of the compiling thread; required if the program has such functions.
    """

    def __init__(
        self,
        calls: SessionCallbacks,
        mark: CallbackMark,
        module: Any,
        checker: CallbackChecker,
        *,
        check: Callable[[Any], object],
        turns: Turns | None,
    ) -> None:
        self.mark = mark
        self.name = mlir.name_of(module)
        self.num_devices = checker.num_devices
        self.check = check
        self._calls = calls
        self._found = checker.compile_calls.found
        self._turns = turns
        self._error: StatusError | None = None
        # XLA keeps no reference to the functions.
        self._bound: list[object] = []

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Registers the functions with XLA while it compiles; raises their first error."""
        if self._found:
            _register()
        self._bound = [self._bind(call) for call in self._found]
        try:
            yield
        except Exception:
            if self._error is None:
                raise
        finally:
            self._bound = []
        if self._error is not None:
            raise self._error.copy() from None

    def ask(self, name: str, index: int, message: bytes) -> pb.CompileAnswer:
        """Calls a function of the client with a serialised CompileCall, unless one has failed."""
        if self._error is not None:
            raise self._error.copy()
        assert self._turns is not None
        asking = _Asking(self, _PREFIX_OF[name], index, self._turns)
        try:
            (answer,) = self._calls.call(asking, index, [np.frombuffer(message, np.uint8)])
        finally:
            asking.resume()
        return read_answer(answer.tobytes())

    def fail(self, error: Exception) -> StatusError:
        """Keeps an error if it is the first; returns the first."""
        if self._error is None:
            self._error = from_exception(error).copy()
        return self._error.copy()

    def _bind(self, call: CompileCall) -> object:
        """Registers one function with XLA; returns what must live until the program is compiled."""
        attributes = call.operation.attributes
        with call.operation.context:
            if call.name == INSPECT:
                inspect = functools.partial(_inspect, self, call.index)
                address = xla_client.encode_inspect_sharding_callback(inspect)
                attributes[CONFIG] = ir.StringAttr.get(address)
                return inspect
            partitioner = _Partitioner(self, call.index)
            number = str(next(_numbers))
            _partitioners[number.encode()] = partitioner
            attributes[CONFIG] = ir.StringAttr.get(number)
            attributes[TARGET] = ir.StringAttr.get(_TARGET)
            return partitioner


class _Asking:
    """One call, in the form that `SessionCallbacks` expects."""

    running = ()

    def __init__(
        self, program: CompileCallbacks, error_prefix: str, index: int, turns: Turns
    ) -> None:
        self.key = program.mark.program
        self.name = program.name
        self.names = program.mark.names
        self.error_prefix = error_prefix
        self.types: Sequence[CallbackTypes] = [_TYPES] * (index + 1)
        self._turns = turns
        self._is_aside = False

    def step_aside(self) -> None:
        self._turns.step_aside()
        self._is_aside = True

    def resume(self) -> None:
        """Continues once nothing else is compiled."""
        if self._is_aside:
            self._is_aside = False
            self._turns.resume(f"the compilation of {self.name}")


def _inspect(program: CompileCallbacks, index: int, sharding: Any) -> None:
    try:
        program.ask(INSPECT, index, describe(sharding))
    except Exception as error:  # noqa: BLE001 - kept, whatever it is
        raise program.fail(error) from None


class _Partitioner:
    """The functions of one call of `custom_partitioning`."""

    def __init__(self, program: CompileCallbacks, index: int) -> None:
        self._program = program
        self._index = index

    def partition(
        self, operands: Values, shape: Any, sharding: Any
    ) -> tuple[bytes, list[Any], Any]:
        program = self._program
        try:
            results = Values.of(shape, sharding)
            message = call_message(pb.CompileCall.PARTITION, operands, results)
            found = read_partition(
                self._ask(message), operands, results, program.num_devices, program.check
            )
        except Exception as error:  # noqa: BLE001 - kept, whatever it is
            raise program.fail(error) from None
        return found.program, list(found.operands), _joined(shape, found.results)

    def infer(self, operands: Values, shape: Any) -> Any:
        try:
            results = Values.of(shape)
            message = call_message(pb.CompileCall.INFER, operands, results)
            return self._shardings(message, shape, results)
        except Exception as error:  # noqa: BLE001 - XLA ends the process at any
            self._program.fail(error)
        count = len(shape.tuple_shapes()) if shape.is_tuple() else 1
        return _joined(shape, [xla_client.HloSharding.replicate()] * count)

    def propagate(self, shape: Any, sharding: Any) -> Any:
        try:
            results = Values.of(shape, sharding)
            message = call_message(pb.CompileCall.PROPAGATE, results=results)
            return self._shardings(message, shape, results)
        except Exception as error:  # noqa: BLE001 - XLA ends the process at any
            self._program.fail(error)
        return sharding

    def _shardings(self, message: bytes, shape: Any, results: Values) -> Any:
        answer = self._ask(message)
        return _joined(shape, read_results(answer, results, self._program.num_devices))

    def _ask(self, message: bytes) -> pb.CompileAnswer:
        return self._program.ask(PARTITION, self._index, message)


def _joined(shape: Any, shardings: Sequence[Any]) -> Any:
    if not shape.is_tuple():
        return shardings[0]
    return xla_client.HloSharding.tuple_sharding(shape, list(shardings))


@functools.cache
def _register() -> None:
    """Registers our functions with XLA, in this process, from now on."""

    def propagate(sharding: Any, shape: Any, number: bytes) -> Any:
        return _partitioners[number].propagate(shape, sharding)

    def partition(
        shapes: Sequence[Any], shardings: Sequence[Any], shape: Any, sharding: Any, number: bytes
    ) -> Any:
        return _partitioners[number].partition(Values(shapes, shardings), shape, sharding)

    def infer(shapes: Sequence[Any], shardings: Sequence[Any], shape: Any, number: bytes) -> Any:
        return _partitioners[number].infer(Values(shapes, shardings), shape)

    xla_client.register_custom_call_partitioner(
        _TARGET, propagate, partition, infer, can_side_effecting_have_replicated_sharding=True
    )
