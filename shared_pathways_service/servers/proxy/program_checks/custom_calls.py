"""Decides which custom calls of a client's program a proxy accepts.

A custom call names a function of the process that compiles or runs it. Some of XLA's and jaxlib's
take an address from the program's text (`InspectSharding`, callbacks of older JAX releases), or
trust the sizes that it states. So a proxy accepts the calls listed here, each with the operands,
results and attributes that JAX gives it, and refuses all others by name.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.callbacks.callback_calls import NAMES, CallbackChecker
from shared_pathways_service.servers.proxy.callbacks.compile_calls import COMPILE_CALLS
from shared_pathways_service.servers.proxy.program_checks.call_attributes import (
    KERNEL,
    problem_of_attributes,
    problem_of_types,
)
from shared_pathways_service.servers.proxy.program_checks.cpu_kernels import (
    KERNELS,
    SPARSE,
    Kernel,
    check_kernel,
)
from shared_pathways_service.servers.proxy.program_checks.xla_calls import (
    XLAS,
    has_tensors_only,
    numbers_of,
    problem_of_xlas,
    shapes_of,
)
from shared_pathways_service.servers.xla import operation_attributes as attr
from shared_pathways_service.servers.xla.platforms import CPU, Cuda

__all__ = ["accepted_names", "check_custom_call", "is_reserved"]

#: StableHLO's versions of the calling convention: untyped ones, and the one with attributes.
_UNTYPED, _TYPED = 1, 4
#: How many of the first dimensions XLA may split among devices.
_BATCH = "num_batch_dims"

_CALLBACK = (
    "a Python callback (jax.debug.print, jax.debug.callback, pure_callback, io_callback)",
    "return the value from the jitted function, and call the function outside of it",
)
_OTHERWISE = "jax.numpy and jax.lax, or jit the function for this machine's CPU"
_OWN_LIBRARY = (
    "or, for a library of your own (jax.ffi), an embedded service that was started with `sps serve "
    "--allow-ffi-libraries DIR`, and proxy_options=['ffi_targets:NAME=LIBRARY:SYMBOL']"
)
_PALLAS = ("a kernel of Pallas", "pallas_call(..., interpret=True), or jax.numpy and jax.lax")
#: The origin of calls in JAX, and the alternative for the user.
_INSTEAD = {
    "InspectSharding": (
        "jax.debug.inspect_array_sharding of a value inside a jit",
        "return the value, and look at its .sharding",
    ),
    "CustomSPMDPartitioning": (
        "jax.experimental.custom_partitioning, which calls Python while XLA compiles",
        "jax.shard_map",
    ),
    "tpu_custom_call": _PALLAS,
    "mosaic_gpu_v2": _PALLAS,
    "triton_kernel_call": _PALLAS,
    "__gpu$xla.gpu.triton": _PALLAS,
    "xla_buffer_python_cpu_callback": (
        "jax.experimental.buffer_callback, whose function writes to the memory of the device",
        "jax.pure_callback or io_callback, whose functions return arrays",
    ),
    "tf.call_tf_function": ("jax2tf.call_tf", "functions of JAX"),
}
_CALLBACKS = re.compile(r"xla_(ffi_|buffer_)?(partitioned_)?python_\w*callback")

#: Calls that a platform's XLA does not turn into operations.
_NOT_RUN = frozenset({("ragged_all_to_all", CPU.name), ("AllocateBuffer", CPU.name)})


@functools.cache
def accepted_names(platform: str) -> frozenset[str]:
    """Returns the names of kernels that a platform's programs may call, besides XLA's own."""
    if platform == CPU.name:
        return frozenset(KERNELS)
    modules = ("linalg", "prng", "solver", "sparse")
    found = [importlib.import_module(f"jaxlib.gpu_{name}").registrations() for name in modules]
    targets = [target for one in found for target in one.get("CUDA", [])]
    return frozenset(name for name, _, version in targets if version == 1)


def is_reserved(name: str) -> bool:
    """Returns whether a name is one that JAX or XLA uses."""
    return (
        name in KERNELS
        or name in XLAS
        or name in NAMES
        or name in _INSTEAD
        or name.startswith(("xla.", "xla_", "mhlo.", "stablehlo.", "__"))
    )


def check_custom_call(
    call: Any,
    platform: str,
    callbacks: CallbackChecker | None = None,
    ffi_names: frozenset[str] = frozenset(),
) -> bool:
    """Refuses a custom call that a proxy does not accept; see `check_program`.

    If a kernel trusts indices, they are limited to valid ones; returns whether it was changed.
    """
    name = call.attributes[attr.TARGET].value
    if callbacks is not None and platform == CPU.name and name in NAMES:
        _typed_attributes(call, name)
        callbacks.check(call, name)
        return False
    if callbacks is not None and platform == CPU.name and name in COMPILE_CALLS:
        callbacks.compile_calls.check(call, name)
        return False
    kernel = KERNELS.get(name) if platform == CPU.name else None
    if kernel is not None:
        _check_kernel(call, name, kernel)
        return name == SPARSE and _limit_indices(call)
    if name in XLAS and (name, platform) not in _NOT_RUN:
        _refuse(name, problem_of_xlas(call, name))
        return False
    if name in ffi_names:
        _refuse(name, _problem_of_own(call, name))
        return False
    if platform == Cuda.name and name in accepted_names(platform):
        _typed_attributes(call, name)
        _refuse(name, _problem_of_kernels_attributes(call, name))
        return False
    raise _refusal(name, platform)


def _refuse(name: str, problem: str) -> None:
    if problem:
        raise invalid_argument(f"custom call {name}: {problem}")


def _refusal(name: str, platform: str) -> StatusError:
    what, instead = "", f"{_OTHERWISE}, {_OWN_LIBRARY}"
    known = _INSTEAD.get(name) or (_CALLBACK if _CALLBACKS.fullmatch(name) else None)
    if known:
        what, instead = f" ({known[0]})", known[1]
    return StatusError(
        Code.UNIMPLEMENTED,
        f"a proxy for {platform} does not run custom call {name[:200]!r}{what}: it runs only XLA's "
        f"operations and jaxlib's kernels. Instead: {instead}",
    )


def _check_kernel(call: Any, name: str, kernel: Kernel) -> None:
    attributes = _typed_attributes(call, name)
    if not has_tensors_only(call):
        problem = "its operands and results must be tensors"
    else:
        problem = _wrong_of_sparse(call) if name == SPARSE else ""
        problem = problem or _problem_of_kernels_attributes(call, name)
    if not problem:
        problem = check_kernel(
            kernel, shapes_of(call.operands), shapes_of(call.results), attributes, _batch_dims(call)
        ) or problem_of_types(_config(call), kernel.types())
    _refuse(name, problem)


def _problem_of_kernels_attributes(call: Any, name: str) -> str:
    attributes = call.attributes
    if attr.SHARDING in attributes:
        # XLA would split operands and results by it, each for itself.
        return f"{attr.SHARDING} must not be set: set the shardings of operands and results"
    if problem := problem_of_attributes(call, name, KERNEL):
        return problem
    if attr.FRONTEND in attributes and _BATCH in attributes[attr.FRONTEND]:
        missing = [layouts for layouts in attr.LAYOUTS if layouts not in attributes]
        if missing:
            # XLA splits such a call as if it had these dimensions.
            return f"{_BATCH} needs {' and '.join(missing)}, which the call does not have"
    return ""


def _problem_of_own(call: Any, name: str) -> str:
    """Returns what is wrong with a call of a user's own library; empty if it is right."""
    _typed_attributes(call, name)
    if not has_tensors_only(call):
        return "its operands and results must be tensors"
    if attr.has_items(call, attr.ALIASES):
        return f"{attr.ALIASES} must not be set"
    return _problem_of_kernels_attributes(call, name)


def _wrong_of_sparse(call: Any) -> str:
    """Returns why the kernel could read beyond its buffers; empty if it cannot."""
    indices = [ir.RankedTensorType(value.type).element_type for value in call.operands[1:3]]
    if not all(str(element) in ("i32", "i64") for element in indices):
        return "its row pointers and columns must be of type i32 or i64"
    if attr.has_items(call, attr.ALIASES):
        # Results would overwrite indices that are still to be read.
        return f"{attr.ALIASES} must not be set"
    return ""


def _typed_attributes(call: Any, name: str) -> Mapping[str, int]:
    """Returns a kernel's attributes, if it is called by XLA's typed interface."""
    attributes = call.attributes
    version = attributes[attr.VERSION].value if attr.VERSION in attributes else _UNTYPED
    # JAX gives the attributes in MHLO's form, which is the typed one with any version.
    by_mhlo = attr.TYPED_CONFIG in attributes
    plain = attr.CONFIG in attributes and attributes[attr.CONFIG] != ir.StringAttr.get("")
    config = _config(call) if by_mhlo or plain else None
    if (
        version not in (_UNTYPED, _TYPED)
        or (by_mhlo and plain)
        or not (by_mhlo or version == _TYPED)
        or not (config is None or isinstance(config, ir.DictAttr))
    ):
        raise invalid_argument(
            f"custom call {name} must be called by XLA's typed interface (API version {_TYPED}, "
            f"attributes by name), not by version {version}"
        )
    return {} if config is None else numbers_of(config)


def _config(call: Any) -> Any:
    """Returns a kernel's configuration, by name; empty if there is none."""
    found = attr.config_of(call)
    return [] if found is None else found


def _batch_dims(call: Any) -> int:
    frontend = attr.get(call, attr.FRONTEND)
    if frontend is None:
        return 0
    if not isinstance(frontend, ir.DictAttr):
        return -1
    if _BATCH not in frontend:
        return 0
    number = frontend[_BATCH]
    value = str(number.value) if isinstance(number, ir.StringAttr) else ""
    return int(value) if re.fullmatch(r"\d{1,3}", value) else -1


def _limit_indices(call: Any) -> bool:
    """Limits the indices of a sparse matrix to its buffers, whatever their values will be."""
    values, pointers, columns, dense = shapes_of(call.operands)
    del pointers, columns
    for index, largest in ((1, values[0]), (2, max(dense[0] - 1, 0))):
        indices = call.operands[index]
        element = ir.RankedTensorType(indices.type).element_type
        with ir.InsertionPoint(call), call.location:
            scalar = ir.RankedTensorType.get([], element)
            least, most = (
                stablehlo.constant(
                    ir.DenseElementsAttr.get_splat(scalar, ir.IntegerAttr.get(element, limit))
                )
                for limit in (0, largest)
            )
            call.operands[index] = stablehlo.clamp(least, indices, most)
    return True
