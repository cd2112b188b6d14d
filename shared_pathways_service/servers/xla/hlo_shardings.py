"""Handles shardings of a program's operations in XLA's own form, as texts of tiles.

Programs for Shardy have none, except for functions that were exported for GSPMD. With
``xla_enable_hlo_sharding_v3`` (on by default from jaxlib 0.11 on, and a client may set it) XLA
expects named axes instead, and crashes if Shardy finds tiles. Without it XLA accepts both.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from shared_pathways_service.servers.xla.operation_attributes import SHARDING
from shared_pathways_service.servers.xla.xla_flags import is_known

__all__ = ["adapt_options"]

_NAMED_AXES = "xla_enable_hlo_sharding_v3"
_OF_VALUES = ("arg_attrs", "res_attrs")


def adapt_options(options: Any, module: Any) -> None:
    """Makes XLA accept tiles as shardings, if Shardy would find some in a checked program."""
    build = options.executable_build_options
    if build.use_shardy_partitioner and _has_shardings(module) and is_known(_NAMED_AXES):
        options.env_option_overrides = [*options.env_option_overrides, (_NAMED_AXES, False)]


def _has_shardings(module: Any) -> bool:
    found = False

    def look(operation: Any) -> Any:
        nonlocal found
        attributes = operation.attributes
        lists = _OF_VALUES if operation.name == "func.func" else ()
        found = SHARDING in attributes or any(
            SHARDING in entry for name in lists if name in attributes for entry in attributes[name]
        )
        return ir.WalkResult.INTERRUPT if found else ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(look)
    return found
