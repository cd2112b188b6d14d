"""Arguments for jaxlib's functions, which belong to one backend or another."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib import _jax

from stress.jaxlib_entries.signatures import Parameter

__all__ = ["Backend", "is_of_a_backend"]

#: Types whose objects belong to a backend, longer names first.
_TYPES = (
    "SingleDeviceSharding",
    "LoadedExecutable",
    "GSPMDSharding",
    "NamedSharding",
    "DeviceList",
    "ArrayImpl",
    "Sharding",
    "Client",
    "Device",
    "Memory",
    "Array",
)
#: Names of parameters of any type that take such objects.
_NAMES = re.compile("aval|py_avals|args|arrays|xs|.*sharding|.*shardings|dst_.*")
_TYPE = re.compile(rf"(?<![A-Za-z])({'|'.join(_TYPES)})(?![A-Za-z])")
#: Types of shardings that belong to none, whatever the parameter's name.
_OF_NONE = re.compile("HloSharding|OpSharding")
#: What jaxlib writes, in one place, of a parameter that takes a list of its own only.
_WRONGLY_WRITTEN = "Sequence[_Device]"
_MANY = re.compile("Sequence|list|Iterable")


def is_of_a_backend(parameter: Parameter) -> bool:
    """Whether a parameter takes an object that belongs to a backend."""
    return bool(_TYPE.search(parameter.type)) or _is_named_for_one(parameter)


def _is_named_for_one(parameter: Parameter) -> bool:
    return bool(_NAMES.fullmatch(parameter.name)) and not _OF_NONE.search(parameter.type)


class Backend:
    """The objects of one backend.

    Args:
      device: One of its devices.
    """

    def __init__(self, device: jax.Device) -> None:
        self._device = device
        self._count = itertools.count()
        self._mesh = jax.make_mesh((1,), ("a",), devices=[device])
        self._program = jax.jit(lambda x: x + 1).lower(jnp.ones(8)).compiler_ir("stablehlo")
        # (Only this machine's CPU has one.)
        cpu = jax.local_devices(backend="cpu")[0]
        self._topology = _jax.get_topology_for_devices([cpu])

    def argument(self, parameter: Parameter) -> Any:
        """Returns an argument: of this backend, if the parameter takes objects of one."""
        found = _TYPE.search(parameter.type)
        if parameter.type == _WRONGLY_WRITTEN:
            return self._of_type("DeviceList")
        if found is not None:
            value = self._of_type(found[1])
        elif _is_named_for_one(parameter):
            value = self._of_name(parameter.name)
        else:
            return self._other(parameter)
        if "tuple" in parameter.type:
            return (value,)
        return [value] if _MANY.search(parameter.type) else value

    def _of_type(self, name: str) -> Any:
        array = self._array()
        named = jax.NamedSharding(self._mesh, jax.P("a"))
        match name:
            case "Client":
                return self._device.client
            case "Device":
                return self._device
            case "Memory":
                return self._device.default_memory()
            case "DeviceList":
                return named._internal_device_list  # noqa: SLF001 - as JAX does
            case "LoadedExecutable":
                return self._executable(array)
            case "NamedSharding":
                return named
            case "GSPMDSharding":
                return _jax.GSPMDSharding([self._device], self._hlo_sharding())
            case "SingleDeviceSharding" | "Sharding":
                return jax.sharding.SingleDeviceSharding(self._device)
        return array

    def _of_name(self, name: str) -> Any:
        array = self._array()
        if "sharding" in name:
            return array.sharding
        if "aval" not in name:
            return array
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)

    def _array(self) -> Any:
        """Returns a new array: the last one may be deleted."""
        return jax.device_put(np.arange(8.0, dtype=np.float32), self._device)

    def _executable(self, array: Any) -> Any:
        """Returns a new executable."""
        number = np.float32(next(self._count))
        return jax.jit(lambda x: x + number).lower(array).compile().runtime_executable()

    def _other(self, parameter: Parameter) -> Any:
        """Returns an argument that belongs to no backend."""
        name, kind = parameter.name, parameter.type
        named = {
            "computation": self._computation(kind),
            "dlpack": np.arange(8.0, dtype=np.float32).__dlpack__(),
            "dtype": np.dtype("float32"),
            "shard_shape": (8,),
            "address": 1 << 20 if "int" in kind else "127.0.0.1:0",
            "memory_kind": "device",
            "message": "an error",
            "transport_addresses": ["127.0.0.1:0"],
        }
        if name in named:
            return named[name]
        if kind == "object":
            return self._array()
        if kind.endswith("Sequence[object]"):
            return [self._array().sharding]
        for text, make in self._makers().items():
            if re.search(rf"\b{text}\b", kind):
                return make()
        if (own := self._of_jaxlib(kind)) is not None:
            return [own] if _MANY.search(kind) else own
        for text, value in _PLAIN.items():
            if re.search(rf"\b{text}\b", kind):
                return value
        return None

    def _makers(self) -> dict[str, Callable[[], Any]]:
        """Returns what makes an object of a class, by the end of the class's name."""
        array, programs = self._array(), _jax.ifrt_programs
        as_text, to_xla = str(self._program), _jax.mlir.mlir_module_to_xla_computation
        aval = jax.core.ShapedArray(array.shape, array.dtype)
        return {
            "HloSharding": self._hlo_sharding,
            "PjRtLayout": lambda: array._pjrt_layout,  # noqa: SLF001 - as JAX does
            "HloModule": lambda: to_xla(as_text).as_hlo_module(),
            "Program": lambda: programs.make_hlo_program(as_text),
            "ifrt_programs.CompileOptions": lambda: programs.make_xla_compile_options(
                _jax.CompileOptions(), self._of_type("DeviceList"), []
            ),
            "DeviceTopology": lambda: self._topology,
            "ResultHandler": lambda: _jax.array_result_handler(
                aval, array.sharding, committed=True
            ),
        }

    def _hlo_sharding(self) -> Any:
        named: Any = jax.NamedSharding(self._mesh, jax.P("a"))
        return named._to_xla_hlo_sharding(1)  # noqa: SLF001 - as JAX does

    def _computation(self, kind: str) -> Any:
        text = str(self._program)
        if "bytes" in kind:
            return text.encode()
        return text if "str" in kind else self._program

    @staticmethod
    def _of_jaxlib(kind: str) -> Any:
        """Returns an object of a class of jaxlib that can be made without arguments, or an enum."""
        for name in re.findall(r"[A-Z]\w+", kind):
            for module in (_jax, _jax.ifrt_programs, importlib.import_module("jaxlib._hlo")):
                holder = getattr(module, name, None)
                if members := getattr(holder, "__members__", None):
                    return next(iter(members.values()))
                if holder is not None:
                    with contextlib.suppress(TypeError):
                        return holder()
        return None


#: The first that a type has is taken.
_PLAIN: dict[str, Any] = {
    r"Sequence\[slice": [slice(None)],
    "dict": {},
    "Mapping": {},
    "Sequence": [],
    "list": [],
    "tuple": (),
    "Iterable": [],
    "slice": slice(None),
    "Callable": lambda *_, **__: None,
    "bool": False,
    "int": 1,
    "float": 1.0,
    "bytes": b"",
    "str": "x",
}
