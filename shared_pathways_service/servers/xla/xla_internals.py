"""The private parts of jaxlib and JAX that the proxy uses, and differences between releases.

Tested with the releases that `pyproject.toml` allows. `check` names the parts that another release
does not have, for all uses in the proxy. Calls that differ between releases are made only here, so
that the rest of the proxy has one form.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import jaxlib.version
from jaxlib import xla_client

from shared_pathways_service.api.jax_releases import release_of
from shared_pathways_service.errors import VersionSkew

__all__ = [
    "check",
    "fingerprint",
    "is_not_utf8",
    "profiler_session",
    "read_portable_artifact",
    "result_handler",
    "shaped_array",
    "sharding_proto",
    "trace_event",
    "single_array",
    "tpu_library",
    "tpus_on_host",
]


def _module(name: str) -> Any:
    """Returns a module; None if this release does not have it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_jax = _module("jaxlib._jax")
_profiler = _module("jaxlib._profiler")
_array = _module("jax._src.array")
_core = _module("jax._src.core")
_mlir = _module("jax._src.interpreters.mlir")
_shardings = _module("jax._src.sharding_impls")
_lapack = _module("jaxlib.cpu._lapack")
_solver = _module("jaxlib.gpu_solver")
_sparse = _module("jaxlib.cpu_sparse")
_ir = _module("jaxlib.mlir.ir")
_hardware = _module("jax._src.hardware_utils")
_tpus = _module("jax._src.cloud_tpu_init")
_sdy = _module("jaxlib.mlir.dialects.sdy")
_stablehlo = _module("jaxlib.mlir.dialects.stablehlo")

#: The classes of MLIR's bindings for the checks of programs.
_OF_IR = """
ArrayAttr Attribute BoolAttr ComplexType DenseElementsAttr DictAttr FlatSymbolRefAttr FloatAttr
FloatType FunctionType InsertionPoint IntegerAttr MLIRError Module OpView Operation RankedTensorType
StringAttr TypeAttr WalkResult
"""
_OF_SDY = """
DimMappingAttr ManualAxesAttr MeshAttr MeshAxisAttr OpShardingRuleAttr TensorMappingAttr
TensorShardingAttr TensorShardingPerValueAttr
"""

#: Each part's place, its name, and what the proxy needs it for.
_PARTS: tuple[tuple[Any, str, str, str], ...] = (
    (_jax, "jaxlib._jax", "CompileOptions", "compile options"),
    (_jax, "jaxlib._jax", "DeviceList", "the devices of a program"),
    (_jax, "jaxlib._jax", "batched_copy_array_to_devices_with_sharding", "copies between devices"),
    (_jax, "jaxlib._jax", "ArrayCopySemantics", "copies between devices"),
    (_jax, "jaxlib._jax", "mlir", "portable StableHLO"),
    (_jax, "jaxlib._jax", "get_tfrt_cpu_client", "devices of the CPU"),
    (_profiler, "jaxlib._profiler", "ProfilerSession", "profiles"),
    (_profiler, "jaxlib._profiler", "ProfileOptions", "profiles"),
    (_profiler, "jaxlib._profiler", "TraceMe", "profiles"),
    (xla_client, "jaxlib.xla_client", "OpSharding", "shardings"),
    (xla_client, "jaxlib.xla_client", "batched_device_put", "arrays of host memory"),
    (xla_client, "jaxlib.xla_client", "batched_block_until_ready", "the end of a program"),
    (xla_client, "jaxlib.xla_client", "array_result_handler", "the results of a program"),
    (xla_client, "jaxlib.xla_client", "get_topology_for_devices", "the key of compiled programs"),
    (xla_client, "jaxlib.xla_client", "DeviceAssignment", "the devices of a program"),
    (_array, "jax._src.array", "ArrayImpl", "arrays made of pieces"),
    (_core, "jax._src.core", "ShapedArray", "types of arrays"),
    (_mlir, "jax._src.interpreters.mlir", "make_ir_context", "every dialect of a program"),
    (_shardings, "jax._src.sharding_impls", "GSPMDSharding", "shardings of several devices"),
    (_lapack, "jaxlib.cpu._lapack", "initialize", "LAPACK's kernels"),
    (_lapack, "jaxlib.cpu._lapack", "registrations", "the names of LAPACK's kernels"),
    (_sparse, "jaxlib.cpu_sparse", "registrations", "kernels of sparse matrices"),
    (_solver, "jaxlib.gpu_solver", "initialize_hybrid_kernels", "LAPACK for kernels of GPUs"),
    (xla_client, "jaxlib.xla_client", "register_custom_call_target", "kernels of sparse matrices"),
    (xla_client, "jaxlib.xla_client", "register_custom_call_partitioner", "custom partitioning"),
    (xla_client, "jaxlib.xla_client", "encode_inspect_sharding_callback", "shardings of values"),
    (xla_client, "jaxlib.xla_client", "HloSharding", "shardings while XLA compiles"),
    *((_ir, "jaxlib.mlir.ir", name, "checks of programs") for name in _OF_IR.split()),
    *((_sdy, "jaxlib.mlir.dialects.sdy", name, "checks of shardings") for name in _OF_SDY.split()),
    (_tpus, "jax._src.cloud_tpu_init", "get_tpu_library_path", "the TPUs of a host"),
    (_hardware, "jax._src.hardware_utils", "num_available_tpu_chips_and_device_id", "TPUs"),
    (_stablehlo, "jaxlib.mlir.dialects.stablehlo", "clamp", "indices of sparse matrices"),
    (_stablehlo, "jaxlib.mlir.dialects.stablehlo", "constant", "indices of sparse matrices"),
)

#: The version of jaxlib, major and minor.
_RELEASE = release_of(jaxlib.version.__version__)


def check() -> None:
    """Raises a VersionSkew that names the private parts which this release does not have."""
    missing = [
        f"{place}.{name} ({purpose})"
        for module, place, name, purpose in _PARTS
        if not hasattr(module, name)
    ]
    if missing:
        version = jaxlib.version.__version__
        raise VersionSkew(
            f"jaxlib {version} is missing what a proxy needs: {', '.join(missing)}",
            service=f"jaxlib {version}",
            hint="install a version of jax that this package names in its requirements",
        )


def shaped_array(shape: tuple[int, ...], dtype: Any) -> Any:
    """Returns the type of an array, as jaxlib's functions expect it."""
    return _core.ShapedArray(shape, dtype)


def single_array(shape: tuple[int, ...], dtype: Any, sharding: Any, parts: list[Any]) -> Any:
    """Returns one array made of arrays on single devices, which must fit: nothing is checked."""
    aval = shaped_array(shape, dtype)
    return _array.ArrayImpl(aval, sharding, parts, committed=True, _skip_checks=True)


def result_handler(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    """Returns a function that makes an array from a program's pieces."""
    # From 0.11.2 on jaxlib has no checks here. Those of 0.11.0 and 0.11.1 refuse a single device.
    unchecked = {"_skip_checks": True} if _RELEASE < (0, 11, 2) else {}
    return xla_client.array_result_handler(
        shaped_array(shape, dtype), sharding, committed=True, **unchecked
    )


def fingerprint(topology: Any) -> Any:
    """Returns a topology's fingerprint; None with jaxlib 0.9, which has no name for it."""
    return topology.fingerprint() if hasattr(topology, "fingerprint") else None


def profiler_session(host_tracer_level: int, python_tracer_level: int) -> Any:
    """Begins a profile of this process, which a method `stop` ends and returns."""
    options = _profiler.ProfileOptions()
    options.host_tracer_level = host_tracer_level
    options.python_tracer_level = python_tracer_level
    # (Otherwise a second profile of the process would be empty.)
    options.raise_error_on_start_failure = True
    return _profiler.ProfilerSession(options)


def trace_event(name: str) -> Any:
    """Returns a context manager whose block is an event of this thread in a profile."""
    return _profiler.TraceMe(name)


def sharding_proto(sharding: Any) -> bytes:
    """Returns the serialised xla.OpSharding of a sharding of jaxlib.

    The shardings of an executable are messages of Python in some releases; in others, and for some
    executables, they are objects of C++.
    """
    message = sharding if hasattr(sharding, "SerializeToString") else sharding.to_proto()
    serialized: bytes = message.SerializeToString()
    return serialized


def tpu_library() -> str | None:
    """Returns the path of libtpu; None if it is not installed."""
    path: str | None = _tpus.get_tpu_library_path()
    return path


def tpus_on_host() -> int:
    """Returns the number of TPU chips that the PCI bus shows."""
    count: int = _hardware.num_available_tpu_chips_and_device_id()[0]
    return count


#: The error for bytes that are not UTF-8 of nanobind, which makes jaxlib's bindings.
_CONVERSION_ERROR = re.compile(r"nanobind::[\w:]*\w*str\w*(\(\))?: conversion error!")


def is_not_utf8(error: BaseException) -> bool:
    """Whether an error of MLIR's bindings means that a text is not UTF-8."""
    if isinstance(error, UnicodeDecodeError):
        return True
    return isinstance(error, RuntimeError) and bool(_CONVERSION_ERROR.fullmatch(str(error)))


def read_portable_artifact(program: bytes, context: Any) -> Any:
    """Reads portable StableHLO as an MLIR module, or its text; MLIR's context must be entered."""
    if _RELEASE < (0, 10):
        return _jax.mlir.deserialize_portable_artifact(program)
    return _jax.mlir.deserialize_portable_artifact(program, context)
