"""Which custom calls of a client's program a proxy accepts.

A custom call names a function of the process that compiles or runs it. Some of XLA's and jaxlib's
take an address from the program's text (`InspectSharding`, callbacks of older JAX releases), or
trust the sizes that it states. So a proxy accepts those that are listed here, each with the
operands, results and attributes that JAX gives it, and refuses all others by name.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shared_pathways_service.servers.proxy.callback_calls import NAMES, CallbackChecker
from shared_pathways_service.servers.proxy.cpu_kernels import (
    KERNELS,
    SPARSE,
    Kernel,
    Shape,
    check_kernel,
)
from shared_pathways_service.servers.proxy.operation_attributes import (
    ALIASES,
    COMPUTATIONS,
    CONFIG,
    FRONTEND,
    SHARDING,
    TARGET,
    TYPED_CONFIG,
    VERSION,
    entries,
    has_items,
)
from shared_pathways_service.servers.proxy.platforms import CPU, Cuda
from shared_pathways_service.servers.proxy.status import Code, StatusError

__all__ = ["XLAS", "accepted_names", "check_custom_call"]

#: Of StableHLO's versions of the calling convention: untyped ones, and the one with attributes.
_UNTYPED, _TYPED = 1, 4
_ATTRIBUTES = "mhlo.attributes"
_PLAIN = frozenset(
    (
        TARGET,
        VERSION,
        CONFIG,
        _ATTRIBUTES,
        "mhlo.version",
        "has_side_effect",
        COMPUTATIONS,
    )
)

_CALLBACK = (
    "a Python callback (jax.debug.print, jax.debug.callback, pure_callback, io_callback)",
    "return the value from the jitted function, and call the function outside of it",
)
_PALLAS = ("a kernel of Pallas", "pallas_call(..., interpret=True), or jax.numpy and jax.lax")
#: What JAX makes of which function, and what to do without it.
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
    "tf.call_tf_function": ("jax2tf.call_tf", "functions of JAX"),
}
_CALLBACKS = re.compile(r"xla_(ffi_|buffer_)?(partitioned_)?python_\w*callback")

_Types = list[str]
_Shapes = list[Shape]


def _one_alike(operands: _Types, results: _Types, _call: Any) -> bool:
    return len(operands) == 1 and operands == results


def _is_plain(call: Any) -> bool:
    # XLA makes an operation of CHLO of it, and ends the process at a sharding, for one.
    return all(entry.name in _PLAIN for entry in entries(call))


def _one_float(operands: _Types, results: _Types, call: Any) -> bool:
    if not _one_alike(operands, results, call) or not _is_plain(call):
        return False
    element = ir.RankedTensorType(call.operands[0].type).element_type
    return isinstance(element, ir.FloatType | ir.ComplexType)


def _one_resized(operands: _Types, results: _Types, call: Any) -> bool:
    if len(operands) != 1 or len(results) != 1:
        return False
    before, after = (ir.RankedTensorType(v.type) for v in (call.operands[0], call.results[0]))
    return bool(before.rank == after.rank and before.element_type == after.element_type)


def _sharding(operands: _Types, results: _Types, call: Any) -> bool:
    if not _one_alike(operands, results, call) or SHARDING not in call.attributes:
        return False
    config = _text(call, CONFIG)
    form = re.fullmatch(r"(unspecified_dims=\[(\d{1,3}(?:,\d{1,3})*)\])?", config)
    if form is None:
        return False
    rank = ir.RankedTensorType(call.operands[0].type).rank
    return all(int(number) < rank for number in (form[2] or "").split(",") if number)


def _none_back(_operands: _Types, results: _Types, _call: Any) -> bool:
    return not results


def _some(operands: _Types, results: _Types, _call: Any) -> bool:
    return bool(operands) and bool(results)


def _ragged(operands: _Types, results: _Types, call: Any) -> bool:
    if len(operands) != 6 or results != operands[1:2] or len(set(operands[2:])) != 1:
        return False
    shapes = _shapes(call.operands)
    return len(shapes[0]) == len(shapes[1]) > 0 and len(shapes[2]) == 1


def _largest(_operands: _Types, _results: _Types, call: Any) -> bool:
    shapes, found = _shapes(call.operands), _shapes(call.results)
    if len(shapes) != 1 or len(found) != 2 or found[0] != found[1] or not shapes[0]:
        return False
    return found[0][:-1] == shapes[0][:-1] and 0 <= found[0][-1] <= shapes[0][-1]


def _approximate(_operands: _Types, _results: _Types, call: Any) -> bool:
    """Arrays, as many first values, and results that differ in one dimension alone."""
    shapes, found = _shapes(call.operands), _shapes(call.results)
    if not found or len(shapes) != 2 * len(found) or len({*shapes[: len(found)]}) != 1:
        return False
    config = _attributes(call)
    axis = config.get("reduction_dim", -1)
    top_k = config.get("top_k", -1)
    if any(shapes[len(found) :]) or not 0 <= axis < len(shapes[0]):
        return False
    size = shapes[0][axis]
    if not 0 < top_k <= size or len({*found}) != 1 or len(found[0]) != len(shapes[0]):
        return False
    rest = [a == b for i, (a, b) in enumerate(zip(shapes[0], found[0], strict=True)) if i != axis]
    return all(rest) and top_k <= found[0][axis] <= size


def _largest_of_chlo(operands: _Types, results: _Types, call: Any) -> bool:
    if not _largest(operands, results, call) or not _is_plain(call):
        return False
    attributes = call.attributes
    config = _numbers(attributes[_ATTRIBUTES]) if _ATTRIBUTES in attributes else {}
    return config == {"k": _shapes(call.results)[0][-1], "largest": 1}


#: What XLA makes operations of, and what JAX gives each.
XLAS: dict[str, Callable[[_Types, _Types, Any], bool]] = {
    "Sharding": _sharding,
    "SPMDFullToShardShape": _one_resized,
    "SPMDShardToFullShape": _one_resized,
    "annotate_device_placement": _one_alike,
    "MoveToHost": _one_alike,
    "MoveToDevice": _one_alike,
    "LayoutConstraint": _one_alike,
    "TopK": _largest,
    "mhlo.topk": _largest_of_chlo,
    "ApproxTopK": _approximate,
    "PartialReduce": _approximate,
    "shape_assertion": _none_back,
    "dce_sink": _none_back,
    "stablehlo.dynamic_reduce_window": _some,
    "stablehlo.dynamic_rng_bit_generator": _some,
    "stablehlo.dynamic_top_k": _some,
    "stablehlo.dynamic_approx_top_k": _some,
    "ragged_all_to_all": _ragged,
} | {
    f"mhlo.{name}": _one_float
    for name in (
        *("acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh", "tan"),
        *("erf", "erf_inv"),
    )
}


#: What a platform's XLA makes no operation of.
_NOT_RUN = frozenset({("ragged_all_to_all", CPU.name)})


@functools.cache
def accepted_names(platform: str) -> frozenset[str]:
    """Returns the names of kernels that programs for a platform may call, beside XLA's own."""
    if platform == CPU.name:
        return frozenset(KERNELS)
    modules = ("linalg", "prng", "solver", "sparse")
    found = [importlib.import_module(f"jaxlib.gpu_{name}").registrations() for name in modules]
    targets = [target for one in found for target in one.get("CUDA", [])]
    return frozenset(name for name, _, version in targets if version == 1)


def check_custom_call(call: Any, platform: str, callbacks: CallbackChecker | None = None) -> bool:
    """Refuses a custom call that a proxy does not accept.

    Args:
      call: Of a parsed program. Where a kernel trusts indices, they are limited to what there is.
      platform: The name of what the program is compiled for.
      callbacks: Checks calls of its client's functions; None: its client serves none.

    Returns:
      Whether the program was changed.

    Raises:
      StatusError: UNIMPLEMENTED, naming the call and what to do instead; INVALID_ARGUMENT: it is
        called in another way than JAX calls it.
    """
    name = call.attributes[TARGET].value
    if callbacks is not None and platform == CPU.name and name in NAMES:
        _typed_attributes(call, name)
        callbacks.check(call, name)
        return False
    kernel = KERNELS.get(name) if platform == CPU.name else None
    if kernel is not None:
        _check_kernel(call, name, kernel)
        return name == SPARSE and _limit_indices(call)
    if (rule := XLAS.get(name)) and (name, platform) not in _NOT_RUN:
        operands, results = _types(call.operands), _types(call.results)
        well_formed = _has_tensors_only(call) and _has_named_attributes(call)
        well_formed &= not has_items(call, ALIASES)
        if not well_formed or not rule(operands, results, call):
            raise StatusError(
                Code.INVALID_ARGUMENT,
                f"custom call {name} is called in another way than JAX calls it: "
                f"{', '.join(operands)} -> {', '.join(results)}",
            )
        return False
    if platform == Cuda.name and name in accepted_names(platform):
        _typed_attributes(call, name)
        return False
    raise _refusal(name, platform)


def _has_tensors_only(call: Any) -> bool:
    return all(
        isinstance(value.type, ir.RankedTensorType) for value in (*call.operands, *call.results)
    )


def _has_named_attributes(call: Any) -> bool:
    # XLA does not look whether they are what it takes them for.
    attributes = call.attributes
    names = (TYPED_CONFIG, _ATTRIBUTES, FRONTEND)
    return all(isinstance(attributes[name], ir.DictAttr) for name in names if name in attributes)


def _refusal(name: str, platform: str) -> StatusError:
    what, instead = "", "jax.numpy and jax.lax, or jit the function for this machine's CPU"
    known = _CALLBACK if _CALLBACKS.fullmatch(name) else _INSTEAD.get(name)
    if known:
        what, instead = f" ({known[0]})", known[1]
    return StatusError(
        Code.UNIMPLEMENTED,
        f"a proxy for {platform} does not run custom call {name[:200]!r}{what}: it runs XLA's "
        f"operations and jaxlib's kernels only. Instead: {instead}",
    )


def _check_kernel(call: Any, name: str, kernel: Kernel) -> None:
    attributes = _typed_attributes(call, name)
    if not _has_tensors_only(call):
        problem = "its operands and results must be tensors"
    elif name == SPARSE and (wrong := _wrong_of_sparse(call)):
        problem = wrong
    elif SHARDING in call.attributes:
        # XLA would split operands and results as it says, each for itself.
        problem = f"{SHARDING} must not be set: set the shardings of operands and results"
    else:
        problem = check_kernel(
            kernel, _shapes(call.operands), _shapes(call.results), attributes, _batch_dims(call)
        )
    if problem:
        raise StatusError(Code.INVALID_ARGUMENT, f"custom call {name}: {problem}")


def _wrong_of_sparse(call: Any) -> str:
    """Returns what would have the kernel read beyond its buffers; empty: nothing."""
    indices = [ir.RankedTensorType(value.type).element_type for value in call.operands[1:3]]
    if not all(str(element) in ("i32", "i64") for element in indices):
        return "its row pointers and columns must be of type i32 or i64"
    if has_items(call, ALIASES):
        # Results would be written over indices that are still to be read.
        return f"{ALIASES} must not be set"
    return ""


def _typed_attributes(call: Any, name: str) -> Mapping[str, int]:
    """Returns a kernel's attributes, if it is called by XLA's typed interface."""
    attributes = call.attributes
    version = attributes[VERSION].value if VERSION in attributes else _UNTYPED
    # JAX gives the attributes in MHLO's form, which is the typed one whatever the version says.
    by_mhlo = TYPED_CONFIG in attributes
    plain = CONFIG in attributes and attributes[CONFIG] != ir.StringAttr.get("")
    config = attributes[TYPED_CONFIG if by_mhlo else CONFIG] if by_mhlo or plain else None
    if (
        version not in (_UNTYPED, _TYPED)
        or (by_mhlo and plain)
        or not (by_mhlo or version == _TYPED)
        or not (config is None or isinstance(config, ir.DictAttr))
    ):
        raise StatusError(
            Code.INVALID_ARGUMENT,
            f"custom call {name} must be called by XLA's typed interface (API version {_TYPED}, "
            f"attributes by name), not by version {version}",
        )
    return {} if config is None else _numbers(config)


def _attributes(call: Any) -> Mapping[str, int]:
    """Returns the whole numbers among an operation's attributes."""
    for name in (TYPED_CONFIG, CONFIG):
        if name in call.attributes and isinstance(call.attributes[name], ir.DictAttr):
            return _numbers(call.attributes[name])
    return {}


def _numbers(config: Any) -> dict[str, int]:
    numbers = {}
    for entry in config:
        value = entry.attr
        if isinstance(value, ir.BoolAttr | ir.IntegerAttr):
            numbers[entry.name] = int(value.value)
        else:
            numbers[entry.name] = -1
    return numbers


def _batch_dims(call: Any) -> int:
    if FRONTEND not in call.attributes:
        return 0
    frontend = call.attributes[FRONTEND]
    if not isinstance(frontend, ir.DictAttr):
        return -1
    if "num_batch_dims" not in frontend:
        return 0
    number = frontend["num_batch_dims"]
    value = str(number.value) if isinstance(number, ir.StringAttr) else ""
    return int(value) if re.fullmatch(r"\d{1,3}", value) else -1


def _limit_indices(call: Any) -> bool:
    """Keeps the indices of a sparse matrix inside its buffers, whatever their values will be."""
    values, pointers, columns, dense = _shapes(call.operands)
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


def _text(call: Any, name: str) -> str:
    if name not in call.attributes:
        return ""
    attribute = call.attributes[name]
    return str(attribute.value) if isinstance(attribute, ir.StringAttr) else str(attribute)


def _types(values: Any) -> _Types:
    return [str(value.type) for value in values]


def _shapes(values: Any) -> _Shapes:
    return [tuple(ir.RankedTensorType(value.type).shape) for value in values]
