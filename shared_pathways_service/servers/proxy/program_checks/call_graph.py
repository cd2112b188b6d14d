"""Checks which functions of a program call which: XLA crashes on recursion."""

from __future__ import annotations

import graphlib
from typing import Any

from jaxlib.mlir import ir

from shared_pathways_service.servers.xla.operation_attributes import COMPUTATIONS

__all__ = ["CallGraph"]

#: The deepest nesting of calls: XLA follows them on its stack.
_DEEPEST = 1000
_FUNCTION = "func.func"
#: The attribute with the target of an operation's call.
_CALLEE = {"func.call": "callee", "stablehlo.composite": "decomposition"}
#: Custom calls in which JAX uses functions of the program: comparators and reducers.
_WITH_FUNCTION = frozenset(
    {
        *("TopK", "ApproxTopK", "PartialReduce"),
        *("stablehlo.dynamic_reduce_window", "stablehlo.dynamic_approx_top_k"),
    }
)


class CallGraph:
    """The functions of one program, recorded while the program is walked in post-order."""

    def __init__(self) -> None:
        self._callees: dict[str, set[str]] = {}
        self._without_body: set[str] = set()
        self._wrong = ""
        # The calls of the function that is being walked, which follows its operations.
        self._pending: set[str] = set()

    def add(self, operation: Any) -> None:
        """Records an operation."""
        name = operation.name
        if attribute := _CALLEE.get(name):
            self._pending.add(operation.attributes[attribute].value)
        elif name == _FUNCTION:
            symbol = operation.attributes["sym_name"].value
            self._callees[symbol], self._pending = self._pending, set()
            if not len(operation.regions[0].blocks):
                self._without_body.add(symbol)

    def add_custom_call(self, operation: Any, target: str) -> None:
        """Records a custom call, which may also call functions of the program."""
        if COMPUTATIONS not in operation.attributes:
            return
        called = operation.attributes[COMPUTATIONS]
        if isinstance(called, ir.ArrayAttr) and not len(called):
            return
        symbol = called[0] if isinstance(called, ir.ArrayAttr) and len(called) == 1 else None
        if target not in _WITH_FUNCTION or not isinstance(symbol, ir.FlatSymbolRefAttr):
            self._wrong = f"custom call {target[:200]} must not have {COMPUTATIONS} {called}"
            return
        self._pending.add(symbol.value)

    def problem(self) -> str:
        """Returns what is wrong with the calls; empty if they are right."""
        if self._wrong:
            return self._wrong
        called = set().union(*self._callees.values())
        if missing := sorted((called - self._callees.keys()) | (called & self._without_body)):
            return f"function {missing[0][:200]} is called but has no body"
        try:
            order = list(graphlib.TopologicalSorter(self._callees).static_order())
        except graphlib.CycleError as error:
            return f"function {error.args[1][0][:200]} calls itself, directly or through others"
        depth: dict[str, int] = {}
        for name in order:
            depth[name] = 1 + max((depth[callee] for callee in self._callees[name]), default=0)
        if max(depth.values(), default=0) > _DEEPEST:
            return f"functions call each other more than {_DEEPEST} deep"
        return ""
