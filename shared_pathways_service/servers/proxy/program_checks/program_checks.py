"""Checks a client's program before XLA gets it: operations, types, shardings, custom calls.

A program may have operations of StableHLO, CHLO, Shardy and `func` only: other dialects have calls
of their own. Its tensors must have element types that XLA can compute with, even if no argument or
result of the whole program has the type.
"""

from __future__ import annotations

import re
from typing import Any

from jaxlib.mlir import ir

from shared_pathways_service.servers.devices.dtypes import TWO_BIT_ELEMENTS
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.callbacks.callback_calls import CallbackChecker
from shared_pathways_service.servers.proxy.program_checks.call_graph import CallGraph
from shared_pathways_service.servers.proxy.program_checks.custom_calls import check_custom_call
from shared_pathways_service.servers.proxy.program_checks.sdy_attributes import problem_of_sdy
from shared_pathways_service.servers.proxy.program_checks.sdy_calls import (
    SDY_CALLS,
    check_sdy,
    is_written,
)
from shared_pathways_service.servers.proxy.program_checks.six_bits import SixBits
from shared_pathways_service.servers.xla.operation_attributes import (
    CUSTOM_CALL,
    TARGET,
    entries,
)
from shared_pathways_service.servers.xla.xla_internals import is_not_utf8

__all__ = ["check_program"]

_DIALECTS = frozenset({"builtin", "chlo", "func", "sdy", "stablehlo"})
_MODULE = "builtin.module"
#: The attributes of a module that XLA reads and JAX sets; XLA trusts the form of others.
_OF_JAX = frozenset(
    f"mhlo.{name}" for name in ("num_partitions", "num_replicas", "frontend_attributes")
)
_FUNCTION, _FUNCTION_TYPE = "func.func", "function_type"
_TWO_BITS = re.compile(rf"(?<=[<x])({'|'.join(TWO_BIT_ELEMENTS)})(?=>)")
_CONCATENATE = "stablehlo.concatenate"


def check_program(
    module: Any,
    platform: str,
    num_devices: int,
    callbacks: CallbackChecker | None = None,
    ffi_names: frozenset[str] = frozenset(),
) -> bool:
    """Refuses a program that would crash XLA, or access more than its own arrays.

    Args:
      module: A parsed program. If a kernel trusts indices, they are limited to valid ones.
      platform: The name of the platform that it is compiled for.
      num_devices: The number of devices that it runs on.
      callbacks: Checks calls of the client's functions; None: the client serves none.
      ffi_names: Functions of the user's own libraries.

    Returns:
      Whether the module was changed.
    """
    found = _Walk(num_devices, platform)
    with module.context:
        module.operation.walk(found.look)
        found.check()
        if found.shardys and (wrong := check_sdy(module, found.shardys, num_devices)):
            raise invalid_argument(f"shardings of Shardy, written as text, are wrong: {wrong}")
        changed = False
        try:
            for call in found.calls:
                changed |= check_custom_call(call, platform, callbacks, ffi_names)
        except Exception as error:
            if not is_not_utf8(error):
                raise
            raise _not_utf8() from error
    return changed


class _Walk:
    """The findings of one walk over a program; `shardys` have attributes of Shardy as text."""

    def __init__(self, num_devices: int, platform: str) -> None:
        self._num_devices = num_devices
        self._is_on_cpus = platform == "cpu"
        self._concatenated: set[Any] = set()
        self._wrong_shardy = ""
        self.calls: list[Any] = []
        self.shardys: list[Any] = []
        self._types: set[Any] = set()
        self._six_bits = SixBits()
        self._graph = CallGraph()
        self._foreign = ""
        self._error: Exception | None = None
        self._unknown = ""

    def look(self, operation: Any) -> Any:
        """Records an operation; ends the walk at one that XLA must not get."""
        try:
            return self._look(operation)
        except Exception as error:  # noqa: BLE001 - raised again in `check`
            # (An error raised here would return as a text with this process's stack.)
            self._error = error
            return ir.WalkResult.INTERRUPT

    def _look(self, operation: Any) -> Any:
        name = operation.name
        if name.partition(".")[0] not in _DIALECTS:
            self._foreign = name
            return ir.WalkResult.INTERRUPT
        # (The arguments of regions have the type of an operand or a result.)
        self._types.update(value.type for value in operation.results)
        self._graph.add(operation)
        self._six_bits.add(operation)
        if name == _CONCATENATE:
            self._concatenated.update(value.type for value in operation.results)
        if name == _FUNCTION:
            self._types.add(operation.attributes[_FUNCTION_TYPE].value)
        if name == _MODULE:
            names = [attribute.name for attribute in entries(operation)]
            unknown = (n for n in names if n.startswith("mhlo.") and n not in _OF_JAX)
            self._unknown = next(unknown, "")
        if wrong := problem_of_sdy(operation, self._num_devices):
            self._wrong_shardy = wrong
            return ir.WalkResult.INTERRUPT
        target = operation.attributes[TARGET].value if name == CUSTOM_CALL else ""
        if target in SDY_CALLS or is_written(operation):
            self.shardys.append(operation)
        if name == CUSTOM_CALL:
            self._graph.add_custom_call(operation, target)
            if target not in SDY_CALLS:
                self.calls.append(operation)
        return ir.WalkResult.ADVANCE

    def check(self) -> None:
        """Refuses what can be determined without single operations."""
        if self._foreign:
            raise invalid_argument(
                f"a program has operations of {', '.join(sorted(_DIALECTS))} only, not "
                f"{self._foreign}"
            )
        if self._error is not None:
            raise _not_utf8() if is_not_utf8(self._error) else self._error
        if self._unknown:
            raise invalid_argument(f"a program's module has {self._unknown}, which JAX never sets")
        if self._wrong_shardy:
            raise invalid_argument(f"shardings of Shardy are wrong: {self._wrong_shardy}")
        if wrong := self._graph.problem():
            raise invalid_argument(f"a program's calls are wrong: {wrong}")
        self._check_types()

    def _check_types(self) -> None:
        if problem := self._six_bits.problem(map(str, self._types), self._num_devices):
            raise StatusError(Code.UNIMPLEMENTED, problem)
        for mlir_type in self._types:
            if self._is_on_cpus and (found := _TWO_BITS.search(str(mlir_type))):
                if self._num_devices > 1:
                    raise _two_bits(f"programs over several devices with {found[0]}")
                if mlir_type in self._concatenated:
                    raise _two_bits(f"concatenations of {found[0]}")


def _two_bits(what: str) -> StatusError:
    text = f"{what} are not supported: XLA's CPU crashes, or is wrong; convert to int4 before"
    return StatusError(Code.UNIMPLEMENTED, text)


def _not_utf8() -> StatusError:
    return invalid_argument("a program has text that is not UTF-8")
