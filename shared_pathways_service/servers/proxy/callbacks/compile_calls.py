"""Checks the custom calls by which XLA calls Python while it compiles.

JAX writes an address of the client's process into each (`InspectSharding`), or a number by which
that process finds its functions (`CustomSPMDPartitioning`). A client that serves callbacks writes
the index of a function instead. The proxy replaces the index by an address or number of its own
process, so no address of a client is ever used.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from shared_pathways_service.servers.devices.status_errors import invalid_argument
from shared_pathways_service.servers.xla import operation_attributes as attr

__all__ = ["COMPILE_CALLS", "INSPECT", "PARTITION", "CompileCall", "CompileCalls"]

INSPECT, PARTITION = "InspectSharding", "CustomSPMDPartitioning"
#: Each with the version of the calling convention that JAX gives it.
COMPILE_CALLS = {INSPECT: 1, PARTITION: 2}
_INDEX = re.compile(r"sps (\d{1,5})")
_KNOWN = frozenset(
    (attr.TARGET, attr.VERSION, attr.CONFIG, attr.COMPUTATIONS, "has_side_effect", attr.FRONTEND)
)
#: The dependence between operands and results, for Shardy.
_RULE = "sdy.sharding_rule"


@dataclasses.dataclass(frozen=True, slots=True)
class CompileCall:
    """A custom call of a program, and the index of the client's function."""

    operation: Any
    index: int

    @property
    def name(self) -> str:
        """The name of the call's target."""
        name: str = self.operation.attributes[attr.TARGET].value
        return name


class CompileCalls:
    """The checked calls at compile time of a program, of the client's `count` functions."""

    def __init__(self, count: int, num_devices: int) -> None:
        self._count = count
        self._num_devices = num_devices
        self.found: list[CompileCall] = []

    def check(self, operation: Any, name: str) -> None:
        """Refuses a custom call that has not the form that JAX writes; adds it to `found`."""
        config = attr.get(operation, attr.CONFIG)
        found = _INDEX.fullmatch(config.value) if isinstance(config, ir.StringAttr) else None
        index = int(found[1]) if found else -1
        problem = _problem(operation, name) or _types_problem(operation, name)
        if found is None:
            problem = f"its {attr.CONFIG} is not 'sps' and an index"
        elif index >= self._count:
            problem = f"its index is {index}, but the client has {self._count} functions"
        elif self._num_devices < 2:
            problem = "the program runs on one device, where XLA does not call it"
        if problem:
            raise invalid_argument(f"custom call {name}: {problem}")
        self.found.append(CompileCall(operation, index))


def _problem(operation: Any, name: str) -> str:
    attributes = operation.attributes
    known = _KNOWN | {_RULE} if name == PARTITION else _KNOWN
    if unknown := [entry.name for entry in attr.entries(operation) if entry.name not in known]:
        return f"it has the attribute {unknown[0][:100]}"
    version = attributes[attr.VERSION].value if attr.VERSION in attributes else 1
    if version != COMPILE_CALLS[name]:
        return f"its {attr.VERSION} is {version}, not {COMPILE_CALLS[name]}"
    if attr.has_items(operation, attr.ALIASES) or attr.has_items(operation, attr.COMPUTATIONS):
        return "it calls functions of the program, or its results share memory with operands"
    if attr.FRONTEND in attributes and not isinstance(attributes[attr.FRONTEND], ir.DictAttr):
        return f"its {attr.FRONTEND} are not a dictionary"
    return ""


def _types_problem(operation: Any, name: str) -> str:
    operands, results = (_types(v) for v in (operation.operands, operation.results))
    if None in operands or None in results:
        return "its operands and results must be tensors of known shape"
    if name == INSPECT and (len(operands) != 1 or operands != results):
        return "it must have one operand, and one result of its type"
    return "" if results else "it has no results"


def _types(values: Any) -> Sequence[str | None]:
    return [
        str(t) if isinstance(t, ir.RankedTensorType) and min(t.shape, default=0) >= 0 else None
        for t in (value.type for value in values)
    ]
