"""Determines which programs are sure to end at once, so that no thread need be woken for them."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

from jaxlib.mlir import ir

from shared_pathways_service.servers.xla.mlir import mlir_context
from shared_pathways_service.servers.xla.operation_attributes import TOKEN_TYPE

__all__ = ["is_quick"]

#: StableHLO's operations that do at most one thing per element.
_ONCE_AN_ELEMENT = """
abs add and atan2 bitcast_convert broadcast_in_dim cbrt ceil clamp compare complex concatenate
constant convert cosine count_leading_zeros create_token divide dynamic_slice dynamic_update_slice
exponential exponential_minus_one floor imag iota is_finite log log_plus_one logistic maximum
minimum multiply negate not optimization_barrier or pad popcnt power real reduce remainder reshape
return reverse round_nearest_afz round_nearest_even rsqrt select shift_left shift_right_arithmetic
shift_right_logical sign sine slice sqrt subtract tan tanh transpose xor
"""
_QUICK = frozenset(f"stablehlo.{name}" for name in _ONCE_AN_ELEMENT.split()) | {
    "func.func",
    "func.return",
}
#: The most operations of a quick program, and the most elements of each value.
_FEW = 64
_SMALL = 16 << 10


def is_quick(module: Any, custom_calls: Container[str] = ()) -> bool:
    """Whether a parsed program is sure to end at once, for any arguments.

    It is small, and has no loop, no nested calls, nothing that may wait, and no custom calls except
    the named ones, which take no time.
    """
    with mlir_context():
        functions: dict[str, Any] = {}
        for operation in module.body.operations:
            if operation.operation.name == "func.func":
                functions[operation.name.value] = operation.operation
            elif operation.operation.name != "sdy.mesh":
                return False
        main = functions.pop("main", None)
        if main is None:
            return False
        costs = {name: _cost(function, {}, custom_calls) for name, function in functions.items()}
        return _cost(main, costs, custom_calls) <= _FEW


def _cost(function: Any, callees: Mapping[str, int], custom_calls: Container[str]) -> int:
    """Returns the number of a function's operations; too many if one is large or may take long."""
    cost = 0

    def look(operation: Any) -> Any:
        nonlocal cost
        cost += 1
        known = operation.name in _QUICK
        if operation.name == "func.call":
            callee = operation.attributes["callee"].value
            known = callee in callees
            cost += callees.get(callee, 0)
        elif operation.name == "stablehlo.custom_call":
            known = operation.attributes["call_target_name"].value in custom_calls
        types = [value.type for value in (*operation.operands, *operation.results)]
        if cost <= _FEW and known and all(map(_is_small, types)):
            return ir.WalkResult.ADVANCE
        cost = _FEW + 1
        return ir.WalkResult.INTERRUPT

    function.walk(look)
    return cost


def _is_small(mlir_type: Any) -> bool:
    if not isinstance(mlir_type, ir.RankedTensorType):
        return str(mlir_type) == TOKEN_TYPE
    shape = mlir_type.shape
    # (An unknown dimension is negative.)
    return min(shape, default=0) >= 0 and math.prod(shape) <= _SMALL
