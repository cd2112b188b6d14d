"""Checks the custom calls by which a program calls back into Python.

The client marks the module of a program whose callbacks it serves. Only in such a program are JAX's
two custom calls for callbacks accepted, and only in the form that JAX writes: XLA uses the index of
a callback unchecked, and copies results of the size that the call declares.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxlib.mlir import ir

from shared_pathways_service.servers.devices.dtypes import dtype_of, kind_of_element
from shared_pathways_service.servers.devices.status_errors import StatusError, invalid_argument
from shared_pathways_service.servers.proxy.callbacks.callback_messages import (
    CallbackTypes,
    ValueType,
)
from shared_pathways_service.servers.proxy.callbacks.compile_calls import CompileCalls
from shared_pathways_service.servers.xla import operation_attributes as attr

__all__ = ["NAMES", "CallbackChecker", "CallbackMark", "take_mark"]

_PLAIN, _PARTITIONED = "xla_ffi_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback"
NAMES = frozenset({_PLAIN, _PARTITIONED})
#: Attributes of the module: the client's number of the program, and the number of callbacks.
_MARK = "sps.callbacks"
_FUNCTIONS = "sps.callback_names"
_LONGEST_NAME = 100
_MARK_FORM = re.compile(r"(\d{1,18}) (\d{1,5})")
_SHARDY = "sdy.sharding"
#: Shardings on one device, or on each device for itself.
_SHARDING_FORM = re.compile(r"\{(?:maximal device=(\d{1,6})|manual|replicated)\}")
_KNOWN = frozenset(
    (
        *(attr.TARGET, attr.VERSION, attr.CONFIG, attr.TYPED_CONFIG, attr.COMPUTATIONS),
        *(attr.ALIASES, *attr.LAYOUTS, attr.SHARDING, attr.FRONTEND),
        *("has_side_effect", _SHARDY),
    )
)


class CallbackMark(NamedTuple):
    """A client's mark of a program: its number of the program, and a name for each callback."""

    program: int
    names: Sequence[str]


def take_mark(module: Any) -> CallbackMark | None:
    """Removes and returns the client's mark of a parsed program; None if there is none."""
    with module.context:
        attributes = module.operation.attributes
        if _MARK not in attributes:
            return None
        mark = attributes[_MARK]
        found = _MARK_FORM.fullmatch(mark.value) if isinstance(mark, ir.StringAttr) else None
        del attributes[_MARK]
        if found is None or not int(found[2]) > 0:
            raise invalid_argument(f"{_MARK} is not a number and a count: {mark}")
        return CallbackMark(int(found[1]), _take_names(attributes, int(found[2])))


def _take_names(attributes: Any, count: int) -> Sequence[str]:
    if _FUNCTIONS not in attributes:
        return ["function"] * count
    names = attributes[_FUNCTIONS]
    is_array = isinstance(names, ir.ArrayAttr) and len(names) == count
    if not is_array or not all(isinstance(name, ir.StringAttr) for name in names):
        raise invalid_argument(f"{_FUNCTIONS} is not an array of {count} strings")
    found = [_printable(name.value) for name in names]
    del attributes[_FUNCTIONS]
    return found


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:_LONGEST_NAME])


class CallbackChecker:
    """Checks the callbacks of one program, of which the client has `count`."""

    def __init__(self, count: int, num_devices: int) -> None:
        self._count = count
        self.num_devices = num_devices
        self.compile_calls = CompileCalls(count, num_devices)
        self._types: dict[int, CallbackTypes] = {}

    def check(self, call: Any, name: str) -> None:
        """Refuses a custom call that has not the form that JAX writes; records its types."""
        index = _index(call)
        if not 0 <= index < self._count:
            raise _wrong(name, f"its index is {index}, but the client has {self._count} callbacks")
        if problem := _problem(call, self.num_devices):
            raise _wrong(name, problem)
        types = CallbackTypes(_types(call.operands), _types(call.results))
        if name == _PARTITIONED and any(one.dtype is not None for one in types.results):
            raise _wrong(name, "a partitioned callback has no results")
        if self._types.setdefault(index, types) != types:
            raise _wrong(name, f"callback {index} is called with different types")

    @property
    def runs_callbacks(self) -> bool:
        """Whether the program calls functions at run time."""
        return bool(self._types)

    def types(self) -> Sequence[CallbackTypes]:
        """Returns the types of each callback; None for callbacks that the program does not call."""
        return [self._types.get(index, CallbackTypes((), ())) for index in range(self._count)]


def _index(call: Any) -> int:
    config = attr.config_of(call)
    if not isinstance(config, ir.DictAttr) or len(config) != 1 or "index" not in config:
        return -1
    index = config["index"]
    is_number = isinstance(index, ir.IntegerAttr) and str(index.type) == "ui64"
    return int(index.value) if is_number else -1


def _problem(call: Any, num_devices: int) -> str:
    if unknown := [entry.name for entry in attr.entries(call) if entry.name not in _KNOWN]:
        return f"it has the attribute {unknown[0][:100]}"
    if attr.has_items(call, attr.ALIASES):
        return "its results share memory with its operands"
    attributes = call.attributes
    # Only the axes of a mesh are in quotes.
    if _SHARDY in attributes and '"' in str(attributes[_SHARDY]):
        return "it is split over several devices"
    if attr.FRONTEND in attributes and not _is_whole(attributes[attr.FRONTEND]):
        return f"its {attr.FRONTEND} are wrong, or split it over several devices"
    if attr.SHARDING in attributes and not _is_on_one(call, num_devices):
        return f"its {attr.SHARDING} is neither one device nor manual"
    return ""


def _is_on_one(call: Any, num_devices: int) -> bool:
    """Whether a sharding, or that of each result, is one device, manual, or on each device."""
    attribute = call.attributes[attr.SHARDING]
    if not isinstance(attribute, ir.StringAttr):
        return False
    texts = [attribute.value]
    if texts[0].startswith("{{") and texts[0].endswith("}}"):
        texts = texts[0][1:-1].split(", ")
        if len(texts) != len(call.results):
            return False
    forms = [_SHARDING_FORM.fullmatch(text) for text in texts]
    return all(form and int(form[1] or 0) < num_devices for form in forms)


def _is_whole(frontend: Any) -> bool:
    """Whether frontend attributes hold only shardings that name no axis."""
    if not isinstance(frontend, ir.DictAttr):
        return False
    texts = {entry.name: str(getattr(entry.attr, "value", '"')) for entry in frontend}
    return not any('"' in text for name, text in texts.items() if name.startswith("xla.sdy."))


def _types(values: Any) -> tuple[ValueType, ...]:
    return tuple(_type(value.type) for value in values)


def _type(mlir_type: Any) -> ValueType:
    if str(mlir_type) == attr.TOKEN_TYPE:
        return ValueType(None, ())
    if not isinstance(mlir_type, ir.RankedTensorType) or min(mlir_type.shape, default=0) < 0:
        raise invalid_argument(f"a callback has a value of type {mlir_type}")
    return ValueType(dtype_of(kind_of_element(str(mlir_type.element_type))), tuple(mlir_type.shape))


def _wrong(name: str, problem: str) -> StatusError:
    return invalid_argument(f"custom call {name}: {problem}")
