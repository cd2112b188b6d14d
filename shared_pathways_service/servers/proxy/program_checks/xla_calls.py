"""Custom calls that XLA turns into operations, with the operands and results that JAX gives them.

XLA trusts the shapes, and crashes if they do not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxlib.mlir import ir

from shared_pathways_service.servers.proxy.program_checks.call_attributes import (
    problem_of_attributes,
)
from shared_pathways_service.servers.proxy.program_checks.cpu_kernels import Shape
from shared_pathways_service.servers.xla import operation_attributes as attr

__all__ = ["XLAS", "has_tensors_only", "numbers_of", "problem_of_xlas", "shapes_of"]

#: Dimensions whose sharding XLA may choose.
_UNSPECIFIED = re.compile(r"(unspecified_dims=\[(\d{1,3}(?:,\d{1,3})*)\])?")

_Types = list[str]
_Shapes = list[Shape]


def _one_alike(operands: _Types, results: _Types, _call: Any) -> bool:
    return len(operands) == 1 and operands == results


def _one_float(operands: _Types, results: _Types, call: Any) -> bool:
    if not _one_alike(operands, results, call) or _chlos(call):
        return False
    element = ir.RankedTensorType(call.operands[0].type).element_type
    return isinstance(element, ir.FloatType | ir.ComplexType)


def _one_resized(operands: _Types, results: _Types, call: Any) -> bool:
    if len(operands) != 1 or len(results) != 1:
        return False
    before, after = (ir.RankedTensorType(v.type) for v in (call.operands[0], call.results[0]))
    return bool(before.rank == after.rank and before.element_type == after.element_type)


def _sharding(operands: _Types, results: _Types, call: Any) -> bool:
    if not _one_alike(operands, results, call) or attr.SHARDING not in call.attributes:
        return False
    form = _UNSPECIFIED.fullmatch(_text(call, attr.CONFIG))
    if form is None:
        return False
    rank = ir.RankedTensorType(call.operands[0].type).rank
    return all(int(number) < rank for number in (form[2] or "").split(",") if number)


def _none_back(_operands: _Types, results: _Types, _call: Any) -> bool:
    return not results


def _allocated(operands: _Types, results: _Types, call: Any) -> bool:
    # (Its size comes from no operand, so it must be known: dynamic sizes are negative here.)
    return not operands and len(results) == 1 and min(shapes_of(call.results)[0], default=0) >= 0


def _some(operands: _Types, results: _Types, _call: Any) -> bool:
    return bool(operands) and bool(results)


def _ragged(operands: _Types, results: _Types, call: Any) -> bool:
    if len(operands) != 6 or results != operands[1:2] or len(set(operands[2:])) != 1:
        return False
    shapes = shapes_of(call.operands)
    return len(shapes[0]) == len(shapes[1]) > 0 and len(shapes[2]) == 1


def _largest(_operands: _Types, _results: _Types, call: Any) -> bool:
    shapes, found = shapes_of(call.operands), shapes_of(call.results)
    if len(shapes) != 1 or len(found) != 2 or found[0] != found[1] or not shapes[0]:
        return False
    return found[0][:-1] == shapes[0][:-1] and 0 <= found[0][-1] <= shapes[0][-1]


def _approximate(_operands: _Types, _results: _Types, call: Any) -> bool:
    """Arrays, as many first values, and results that differ in one dimension only."""
    shapes, found = shapes_of(call.operands), shapes_of(call.results)
    if not found or len(shapes) != 2 * len(found) or len({*shapes[: len(found)]}) != 1:
        return False
    config = _attributes(call)
    axis = config.get("reduction_dim", -1)
    top_k = config.get("top_k", -1)
    if any(shapes[len(found) :]) or not 0 <= axis < len(shapes[0]):
        return False
    size = shapes[0][axis]
    if not 0 < top_k <= size or len({*found}) != 1 or len(found[0]) != len(shapes[0]):
        return False
    rest = [a == b for i, (a, b) in enumerate(zip(shapes[0], found[0], strict=True)) if i != axis]
    return all(rest) and top_k <= found[0][axis] <= size


def _largest_of_chlo(operands: _Types, results: _Types, call: Any) -> bool:
    if not _largest(operands, results, call):
        return False
    return _chlos(call) == {"k": shapes_of(call.results)[0][-1], "largest": 1}


#: The calls that XLA turns into operations, with the operands and results that JAX gives them.
XLAS: dict[str, Callable[[_Types, _Types, Any], bool]] = {
    "Sharding": _sharding,
    "SPMDFullToShardShape": _one_resized,
    "SPMDShardToFullShape": _one_resized,
    "annotate_device_placement": _one_alike,
    "MoveToHost": _one_alike,
    "MoveToDevice": _one_alike,
    "LayoutConstraint": _one_alike,
    "AllocateBuffer": _allocated,
    "TopK": _largest,
    "mhlo.topk": _largest_of_chlo,
    "ApproxTopK": _approximate,
    "PartialReduce": _approximate,
    "shape_assertion": _none_back,
    "dce_sink": _none_back,
    "stablehlo.dynamic_reduce_window": _some,
    "stablehlo.dynamic_rng_bit_generator": _some,
    "stablehlo.dynamic_top_k": _some,
    "stablehlo.dynamic_approx_top_k": _some,
    "ragged_all_to_all": _ragged,
} | {
    f"mhlo.{name}": _one_float
    for name in (
        *("acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh", "tan"),
        *("erf", "erf_inv"),
    )
}


def problem_of_xlas(call: Any, name: str) -> str:
    """Returns what is wrong with a call of one of `XLAS`; empty if it is right."""
    if not has_tensors_only(call):
        return "its operands and results must be tensors"
    if attr.has_items(call, attr.ALIASES):
        return f"{attr.ALIASES} must not be set"
    if problem := problem_of_attributes(call, name):
        return problem
    if not name.startswith(("Sharding", "SPMD")) and (text := _text(call, attr.CONFIG)):
        return f"{attr.CONFIG} must be empty, not {text[:100]!r}"
    operands, results = _types(call.operands), _types(call.results)
    if not XLAS[name](operands, results, call):
        written = f"{', '.join(operands)} -> {', '.join(results)}"
        return f"JAX does not call it with these operands, results and attributes: {written}"
    return ""


def has_tensors_only(call: Any) -> bool:
    """Whether all operands and results of a call are tensors."""
    return all(
        isinstance(value.type, ir.RankedTensorType) for value in (*call.operands, *call.results)
    )


def _chlos(call: Any) -> Mapping[str, int]:
    """Returns the integers among the attributes of the operation that a call stands for."""
    return numbers_of(attr.get(call, attr.ATTRIBUTES) or ())


def _attributes(call: Any) -> Mapping[str, int]:
    """Returns the integers among an operation's attributes."""
    found = (attr.get(call, name) for name in (attr.TYPED_CONFIG, attr.CONFIG))
    return numbers_of(next((one for one in found if isinstance(one, ir.DictAttr)), ()))


def numbers_of(config: Any) -> dict[str, int]:
    """Returns the integers of a dictionary; -1 for other values."""
    numbers = {}
    for entry in config:
        value = entry.attr
        if isinstance(value, ir.BoolAttr | ir.IntegerAttr):
            numbers[entry.name] = int(value.value)
        else:
            numbers[entry.name] = -1
    return numbers


def _text(call: Any, name: str) -> str:
    """Returns a text among the attributes of a call; empty if there is none of that name."""
    attribute = attr.get(call, name)
    return str(attribute.value) if isinstance(attribute, ir.StringAttr) else ""


def _types(values: Any) -> _Types:
    return [str(value.type) for value in values]


def shapes_of(values: Any) -> _Shapes:
    """Returns the shapes of tensors."""
    return [tuple(ir.RankedTensorType(value.type).shape) for value in values]
