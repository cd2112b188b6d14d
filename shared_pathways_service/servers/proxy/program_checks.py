"""Checks a client's program before XLA sees it: its operations, types, shardings and custom calls.

A program has operations of StableHLO, CHLO, Shardy and `func` only: other dialects have calls of
their own. Its tensors have elements that XLA can compute with, also where no argument or result
of the whole program is of their type.
"""

from __future__ import annotations

import re
from typing import Any

from jaxlib.mlir import ir

from shared_pathways_service.servers.proxy.callback_calls import CallbackChecker
from shared_pathways_service.servers.proxy.custom_calls import (
    CUSTOM_CALL,
    TARGET,
    check_custom_call,
)
from shared_pathways_service.servers.proxy.dtypes import UNSUPPORTED_ELEMENTS
from shared_pathways_service.servers.proxy.sdy_calls import SDY_CALLS, check_sdy, is_written
from shared_pathways_service.servers.proxy.status import Code, StatusError

__all__ = ["check_program"]

_DIALECTS = frozenset({"builtin", "chlo", "func", "sdy", "stablehlo"})
_FUNCTION, _FUNCTION_TYPE = "func.func", "function_type"
_UNSUPPORTED = re.compile("|".join(UNSUPPORTED_ELEMENTS))


def check_program(module: Any, platform: str, callbacks: CallbackChecker | None = None) -> bool:
    """Refuses a program that XLA would not survive, or that reaches beyond its own arrays.

    Args:
      module: A parsed program. Where a kernel trusts indices, they are limited to what there is.
      platform: The name of what it is compiled for.
      callbacks: Checks calls of its client's functions; None: its client serves none.

    Returns:
      Whether the module was changed.

    Raises:
      StatusError: UNIMPLEMENTED, naming a type of elements, or a custom call and what to do
        instead; INVALID_ARGUMENT, naming a custom call that is called in another way than JAX's,
        or an operation.
    """
    calls: list[Any] = []
    shardys: list[Any] = []
    types: set[Any] = set()
    foreign = ""

    def look(operation: Any) -> Any:
        nonlocal foreign
        name = operation.name
        if name.partition(".")[0] not in _DIALECTS:
            foreign = name
            return ir.WalkResult.INTERRUPT
        # (Arguments of regions have the type of an operand or a result.)
        types.update(value.type for value in operation.results)
        if name == _FUNCTION:
            types.add(operation.attributes[_FUNCTION_TYPE].value)
        is_shardys = name == CUSTOM_CALL and operation.attributes[TARGET].value in SDY_CALLS
        if is_shardys or is_written(operation):
            shardys.append(operation)
        if name == CUSTOM_CALL and not is_shardys:
            calls.append(operation)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(look)
        if foreign:
            raise StatusError(
                Code.INVALID_ARGUMENT,
                f"a program has operations of {', '.join(sorted(_DIALECTS))} only, not {foreign}",
            )
        _check_elements(types)
        if shardys and (wrong := check_sdy(module, shardys)):
            raise StatusError(
                Code.INVALID_ARGUMENT, f"shardings of Shardy, written as text, are wrong: {wrong}"
            )
        changed = False
        for call in calls:
            changed |= check_custom_call(call, platform, callbacks)
    return changed


def _check_elements(types: set[Any]) -> None:
    for mlir_type in types:
        if found := _UNSUPPORTED.search(str(mlir_type)):
            raise StatusError(Code.UNIMPLEMENTED, f"arrays of type {found[0]} are not supported")
