"""Attributes of a program's operations: names that several checks use, and their readers."""

from __future__ import annotations

from typing import Any

__all__ = [
    "ALIASES",
    "ATTRIBUTES",
    "COMPUTATIONS",
    "CONFIG",
    "CUSTOM_CALL",
    "FRONTEND",
    "LAYOUTS",
    "SHARDING",
    "SHARDING_RULE",
    "TARGET",
    "TOKEN_TYPE",
    "TYPED_CONFIG",
    "VERSION",
    "config_of",
    "entries",
    "get",
    "has_items",
]

CUSTOM_CALL = "stablehlo.custom_call"
#: Attributes of custom calls: the target, the calling convention, and the configuration.
TARGET, VERSION = "call_target_name", "api_version"
CONFIG, TYPED_CONFIG = "backend_config", "mhlo.backend_config"
#: Which results share memory with which operands, and the called functions of the program.
ALIASES, COMPUTATIONS = "output_operand_aliases", "called_computations"
LAYOUTS = ("operand_layouts", "result_layouts")
FRONTEND, SHARDING = "mhlo.frontend_attributes", "mhlo.sharding"
SHARDING_RULE = "sdy.sharding_rule"
#: The attributes of the CHLO operation that a custom call stands for.
ATTRIBUTES = "mhlo.attributes"
#: The type of values that order operations, as it is printed.
TOKEN_TYPE = "!stablehlo.token"  # noqa: S105


def get(operation: Any, name: str) -> Any:
    """Returns an attribute of an operation; None if there is none of that name."""
    attributes = operation.attributes
    return attributes[name] if name in attributes else None  # noqa: SIM401 - it has no `get`


def config_of(call: Any) -> Any:
    """Returns the configuration of a custom call, which has one of two names; None: it has none."""
    config = get(call, TYPED_CONFIG)
    return get(call, CONFIG) if config is None else config


def entries(operation: Any) -> list[Any]:
    """Returns the attributes of an operation, each with its name."""
    attributes = operation.attributes
    return [attributes[index] for index in range(len(attributes))]


def has_items(operation: Any, name: str) -> bool:
    """Whether an operation has a non-empty list of that name."""
    return name in operation.attributes and len(operation.attributes[name]) > 0
