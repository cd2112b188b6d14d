"""The attributes of custom calls: the names and types that JAX 0.9 to 0.12 give them.

XLA trusts the form of the attributes that it reads, and reads more of them than JAX writes. So an
attribute that is not listed for a call is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxlib.mlir import ir

from shared_pathways_service.servers.xla import operation_attributes as attr

__all__ = ["KERNEL", "OF_XLA", "problem_of_attributes", "problem_of_types", "type_of"]

_BOOL, _TEXT, _LIST, _DICTIONARY, _ANY = "bool", "text", "list", "dictionary", ""
Types = Mapping[str, str]

#: Attributes of every call, whatever its target.
_PLAIN: Types = {
    attr.TARGET: _TEXT,
    attr.VERSION: "i32",
    attr.CONFIG: _TEXT,
    attr.COMPUTATIONS: _LIST,
    "has_side_effect": _BOOL,
}
_COMMON: Types = {
    **_PLAIN,
    attr.TYPED_CONFIG: _DICTIONARY,
    attr.FRONTEND: _DICTIONARY,
    attr.ALIASES: _LIST,
    **dict.fromkeys(attr.LAYOUTS, _LIST),
}
#: Attributes of kernel calls. (StableHLO verifies layouts and aliases, and Shardy its rules.)
KERNEL: Types = {**_COMMON, attr.SHARDING_RULE: _ANY}
_PLACED: Types = {**_COMMON, attr.SHARDING: _TEXT}
#: Attributes of CHLO operations: XLA copies the call's attributes to the operation.
_CHLO: Types = {**_PLAIN, attr.ATTRIBUTES: _DICTIONARY, "mhlo.version": "i64"}
#: Attributes of calls that XLA turns into operations; others have the common ones.
OF_XLA: Mapping[str, Types] = {
    "Sharding": _PLACED,
    "SPMDFullToShardShape": _PLACED,
    "SPMDShardToFullShape": _PLACED,
    "annotate_device_placement": {**_PLACED, attr.SHARDING_RULE: _ANY},
    "MoveToHost": {**_COMMON, attr.SHARDING_RULE: _ANY},
    "MoveToDevice": {**_COMMON, attr.SHARDING_RULE: _ANY},
    "shape_assertion": {**_COMMON, "error_message": _TEXT},
    "stablehlo.dynamic_rng_bit_generator": {**_COMMON, "rng_algorithm": _ANY},
    "stablehlo.dynamic_top_k": {**_COMMON, "is_stable": _BOOL},
}
_APPROXIMATE: Types = {
    "aggregate_to_topk": _BOOL,
    "is_fallback": _BOOL,
    "recall_target": "f32",
    "reduction_dim": "i64",
    "reduction_input_size_override": "i64",
    "top_k": "i64",
}
#: The configuration of XLA's calls; others have none.
_CONFIGS: Mapping[str, Types] = {
    "ApproxTopK": _APPROXIMATE,
    "PartialReduce": {**_APPROXIMATE, "log2_reduction": "i64", "to_apply_type": _TEXT},
    "stablehlo.dynamic_approx_top_k": _APPROXIMATE,
    "ragged_all_to_all": {"replica_groups": _ANY, "channel_id": "i64"},
}


def type_of(attribute: Any) -> str:
    """Returns the type of an attribute, as this module names it; empty if it has no name."""
    if isinstance(attribute, ir.BoolAttr):
        return _BOOL
    if isinstance(attribute, ir.IntegerAttr | ir.FloatAttr):
        return str(attribute.type)
    names = ((ir.StringAttr, _TEXT), (ir.ArrayAttr, _LIST), (ir.DictAttr, _DICTIONARY))
    return next((name for kind, name in names if isinstance(attribute, kind)), _ANY)


def problem_of_attributes(call: Any, name: str, known: Types | None = None) -> str:
    """Returns what is wrong with the attributes of a custom call; empty if they are right.

    `known` are the allowed ones; None: XLA turns the call into an operation.
    """
    is_xlas = known is None
    if known is None:
        known = OF_XLA.get(name, _CHLO if name.startswith("mhlo.") else _COMMON)
    attributes = call.attributes
    dialects = isinstance(attr.get(call, attr.CONFIG), ir.DictAttr)
    found = [entry for entry in attr.entries(call) if not (dialects and entry.name == attr.CONFIG)]
    if problem := problem_of_types(found, known):
        return problem
    if attr.FRONTEND in attributes:
        texts = {entry.name: _TEXT for entry in attributes[attr.FRONTEND]}
        if problem := problem_of_types(attributes[attr.FRONTEND], texts):
            return f"{attr.FRONTEND}: {problem}"
    config = attributes[attr.CONFIG] if dialects else None
    if attr.TYPED_CONFIG in attributes:
        config = attributes[attr.TYPED_CONFIG]
    if (
        is_xlas
        and config is not None
        and (problem := problem_of_types(config, _CONFIGS.get(name, {})))
    ):
        return f"its configuration: {problem}"
    return ""


def problem_of_types(found: Any, known: Types) -> str:
    """Returns which attribute is unknown, or has a wrong type; empty if all are right.

    `known` has the types by name; an empty text stands for any type.
    """
    for entry in found:
        wanted = known.get(entry.name)
        if wanted is None:
            return f"the attribute {entry.name[:100]} is not one that JAX gives it"
        if wanted and (kind := type_of(entry.attr)) != wanted:
            return f"{entry.name} must be of type {wanted}, not {kind or entry.attr}"[:300]
    return ""
