"""Attributes of a program's operations: names that several checks use, and how to read them."""

from __future__ import annotations

from typing import Any

__all__ = [
    "ALIASES",
    "COMPUTATIONS",
    "CONFIG",
    "CUSTOM_CALL",
    "FRONTEND",
    "SHARDING",
    "TARGET",
    "TYPED_CONFIG",
    "VERSION",
    "entries",
    "has_items",
]

CUSTOM_CALL = "stablehlo.custom_call"
#: Of a custom call: the function's name, the calling convention, and what the function is given.
TARGET, VERSION = "call_target_name", "api_version"
CONFIG, TYPED_CONFIG = "backend_config", "mhlo.backend_config"
#: Which results share memory with which operands, and the functions of the program that it calls.
ALIASES, COMPUTATIONS = "output_operand_aliases", "called_computations"
FRONTEND, SHARDING = "mhlo.frontend_attributes", "mhlo.sharding"


def entries(operation: Any) -> list[Any]:
    """Returns the attributes of an operation, each with its name."""
    attributes = operation.attributes
    return [attributes[index] for index in range(len(attributes))]


def has_items(operation: Any, name: str) -> bool:
    """Whether an operation has a list of that name which is not empty."""
    return name in operation.attributes and len(operation.attributes[name]) > 0
