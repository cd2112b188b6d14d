"""Checks Shardy's attributes of operations: the sizes of meshes, and sharding rules.

MLIR verifies most of them. XLA also multiplies the sizes of a mesh's axes, and divides the
dimensions of an array by a rule's factors, without a check of the results.
"""

from __future__ import annotations

import math
import re
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shared_pathways_service.servers.xla.operation_attributes import SHARDING_RULE, entries

__all__ = ["problem_of_mesh", "problem_of_rule", "problem_of_sdy"]

_SHARDING = "sdy.sharding"
_OF_FUNCTION = ("arg_attrs", "res_attrs")
#: The devices of a mesh in a program for one device, which XLA does not split: JAX writes abstract
#: meshes of any size there.
_MOST_ABSTRACT = 1 << 16
#: The axes of a mesh as they are printed, and one of them. Names in quotes may have any characters.
_MESH = re.compile(r'mesh<\[((?:[^\]"]|"(?:[^"\\]|\\.)*")*)\]', re.DOTALL)
_SIZE = re.compile(r'"(?:[^"\\]|\\.)*"=(\d+)', re.DOTALL)


def problem_of_sdy(operation: Any, num_devices: int) -> str:
    """Returns what is wrong with Shardy's attributes of an operation; empty if they are right."""
    attributes = operation.attributes
    if operation.name.startswith("sdy."):
        found = [entry.attr for entry in entries(operation)]
    else:
        names = _OF_FUNCTION if operation.name == "func.func" else (_SHARDING,)
        found = [attributes[name] for name in names if name in attributes]
    for attribute in found:
        text = str(attribute)
        for axes in _MESH.findall(text) if "mesh<" in text else ():
            if problem := problem_of_mesh([int(size) for size in _SIZE.findall(axes)], num_devices):
                return problem
    if SHARDING_RULE in attributes:
        return problem_of_rule(sdy.OpShardingRuleAttr(attributes[SHARDING_RULE]), operation)
    return ""


def problem_of_mesh(sizes: list[int], num_devices: int) -> str:
    """Returns what is wrong with the sizes of a mesh's axes; empty if they are right."""
    most = num_devices if num_devices > 1 else _MOST_ABSTRACT
    if min(sizes, default=1) < 1 or math.prod(sizes) > most:
        written = " x ".join(map(str, sizes))[:200]
        return f"a mesh of {written} devices, in a program for {num_devices}"
    return ""


def problem_of_rule(rule: Any, operation: Any) -> str:
    """Returns what is wrong with an `OpShardingRuleAttr` of an operation; empty if it is right."""
    sizes = list(rule.factor_sizes)
    for mappings, values in (
        (rule.operand_mappings, operation.operands),
        (rule.result_mappings, operation.results),
    ):
        dimensions = [
            [
                list(sdy.DimMappingAttr(d).factor_indices)
                for d in sdy.TensorMappingAttr(m).dim_mappings
            ]
            for m in mappings
        ]
        types = [ir.RankedTensorType(value.type) for value in values]
        if [len(one) for one in dimensions] != [one.rank for one in types]:
            return "a sharding rule for values of other ranks, or for another number of them"
        for one, of in zip(dimensions, types, strict=True):
            factors = [factor for dimension in one for factor in dimension]
            if not all(0 <= factor < len(sizes) for factor in factors):
                return "a sharding rule with a factor that it does not have"
            if len(set(factors)) != len(factors):
                return "a sharding rule with a factor twice in one value"
            products = [math.prod(sizes[factor] for factor in dimension) for dimension in one]
            if products != list(of.shape):
                written = " x ".join(map(str, products))[:200]
                return f"a sharding rule whose factors make {written}, for {of}"
    return ""
