"""Programs with one custom call each: as JAX writes it, and with something wrong."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from shared_pathways_service.servers.proxy.program_checks.cpu_kernels import (
    KERNELS,
    SPARSE,
    check_kernel,
)
from shared_pathways_service.servers.proxy.program_checks.sdy_calls import SDY_CALLS
from shared_pathways_service.servers.proxy.program_checks.xla_calls import XLAS

__all__ = ["REFUSED", "odd_program", "right_program"]

#: Names that XLA, jaxlib, a plug-in or the C library know, and no proxy accepts.
REFUSED = (
    "InspectSharding",
    "CustomSPMDPartitioning",
    "xla_python_cpu_callback",
    "xla_python_gpu_callback",
    "xla_ffi_python_cpu_callback",
    "xla_ffi_python_gpu_callback",
    "xla_ffi_partitioned_python_cpu_callback",
    "xla_ffi_partitioned_python_gpu_callback",
    "tpu_custom_call",
    "mosaic_gpu_v2",
    "triton_kernel_call",
    "__gpu$xla.gpu.triton",
    "__onednn$matmul",
    "__xla_cpu_runtime_EigenMatMulF32",
    "lapack_spotrf",
    "cusolver_potrf_ffi",
    "xla.sdy.PropagationBarrier",
    "PadToStatic",
    "SliceToDynamic",
    "Qr",
    "Eigh",
    "memcpy",
    "abort",
    "",
)
#: Element types of a routine's operands and results: `a` is its own, `r` the real and `c` the
#: complex one of the same precision, `i` of integers.
_TYPES = {
    "trsm": "aa>a", "getrf": "a>aii", "geqrf": "a>aa", "geqp3": "ai>aia", "orgqr": "aa>a",
    "ungqr": "aa>a", "ormqr": "aaa>a", "unmqr": "aaa>a", "potrf": "a>ai", "gesdd": "a>araai",
    "gesvd": "a>araai", "syevd": "a>ari", "heevd": "a>ari", "gehrd": "a>aai", "sytrd": "a>arrai",
    "hetrd": "a>arrai", "gtsv": "aaaa>aaaai",
}  # fmt: skip
_OF_TWO_KINDS = {"geev": ("a>aacci", "a>aaai"), "gees": ("a>aaaaii", "a>aaaii")}
_ELEMENTS = {"s": "f32", "d": "f64", "c": "complex<f32>", "z": "complex<f64>"}
_SIZES = (-1, 0, 1, 2, 3, 4, 5, 64, 100, 4096)
_NUMBERS = (0, 1, 65, 76, 78, 79, 83, 85, 86, 97, 255)
_CONFIGS = ('""', '"94085160"', "{}", "{index = 0 : ui64}", "{mode = 86 : ui8}",
            '"unspecified_dims=[0]"', '"unspecified_dims=[99]"', "{reduction_dim = 9 : i64}",
            "{reduction_dim = 0 : i64, top_k = 2 : i64, recall_target = 0.9 : f32}")  # fmt: skip
_SHARDINGS = ('"{replicated}"', '"{maximal device=0}"', '"{manual}"', '"{devices=[2]<=[2]}"')


@dataclasses.dataclass
class _Buffer:
    element: str
    shape: list[int]

    def __str__(self) -> str:
        sizes = "".join(f"{'?' if size < 0 else size}x" for size in self.shape)
        return f"tensor<{sizes}{self.element}>"


@dataclasses.dataclass
class _Call:
    name: str
    operands: list[_Buffer]
    results: list[_Buffer]
    attributes: dict[str, str]
    config: dict[str, str] | None = None
    layouts: list[str] = dataclasses.field(default_factory=list)
    module: str = ""

    def program(self) -> str:
        """Returns a program without arguments, whose operands are zeros."""
        lines = []
        for number, operand in enumerate(self.operands):
            static = _Buffer(operand.element, [max(size, 0) for size in operand.shape])
            zero = "(0.0, 0.0)" if "complex" in operand.element else "0"
            zero = "0.0" if operand.element.startswith("f") else zero
            lines.append(f"%a{number} = stablehlo.constant dense<{zero}> : {static}")
            if str(static) != str(operand):
                lines[-1] = lines[-1].replace(f"%a{number} ", f"%s{number} ")
                lines.append(f"%a{number} = builtin.unrealized_conversion_cast %s{number} : "
                             f"{static} to {operand}")  # fmt: skip
        attributes = dict(self.attributes)
        if self.config is not None:
            config = ", ".join(f"{name} = {value}" for name, value in self.config.items())
            attributes["mhlo.backend_config"] = f"{{{config}}}"
        for side, buffers in (("operand", self.operands), ("result", self.results)):
            if side in self.layouts:
                orders = ", ".join(_layout(len(buffer.shape)) for buffer in buffers)
                attributes[f"{side}_layouts"] = f"[{orders}]"
        written = ", ".join(f"{name} = {value}" for name, value in attributes.items())
        names = ", ".join(f"%a{number}" for number in range(len(self.operands)))
        results = ", ".join(map(str, self.results))
        found = [f"%r#{number}" for number in range(len(self.results))]
        lines.append(
            f"{f'%r:{len(found)} = ' if found else ''}"
            f'"stablehlo.custom_call"({names}) {{call_target_name = "{self.name}", '
            f"{written}}} : ({', '.join(map(str, self.operands))}) -> ({results})"
        )
        lines.append(f"return {', '.join(found)} : {results}" if found else "return")
        body = "\n    ".join(lines)
        head = f"module @odd {self.module}{{\n{_COMPARATOR}"
        return f"{head}  func.func public @main() -> ({results}) {{\n    {body}\n  }}\n}}"


#: A function that calls may name.
_COMPARATOR = """  func.func private @less(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>,
      %d: tensor<i32>) -> tensor<i1> {
    %r = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    return %r : tensor<i1>
  }
"""


def _types_of(name: str) -> tuple[str, str]:
    """Returns the element types of a kernel's operands and results, and the letter of its type."""
    if name == SPARSE:
        return "aiia>a", "s"
    if not name.startswith("lapack_"):
        return "aaaa>a", "s"
    letter, routine = name[7], name[8:-4]
    if routine in _OF_TWO_KINDS:
        return _OF_TWO_KINDS[routine][letter in "cz"], letter
    return _TYPES[routine], letter


def _kernel(draw: random.Random, name: str) -> _Call:
    """Returns a call of a kernel as JAX writes it."""
    kernel = KERNELS[name]
    types, letter = _types_of(name)
    real = "f32" if letter in "sc" else "f64"
    elements = {"a": _ELEMENTS[letter], "r": real, "c": f"complex<{real}>", "i": "i32"}
    while True:
        numbers = {key: draw.choice([ord(c) for c in some]) for key, some in kernel.choices.items()}
        numbers |= dict.fromkeys(kernel.switches, draw.randrange(2))
        numbers |= {key: draw.randrange(1, 4) for key in kernel.numbers}
        sizes = {key: draw.randrange(1, 4) for key in "mnturcvz"}
        sizes |= {"k": min(sizes["m"], sizes["n"]), "1n": sizes["n"] - 1}
        if name == SPARSE:
            sizes["r"] = sizes["n"] + 1
        batch = [] if name == SPARSE else [2] * draw.randrange(3)
        operands, results = (
            [[*batch, *(sizes[key] for key in dims.split(",") if key)] for dims in side]
            for side in (kernel.operands, kernel.results)
        )
        shapes = [tuple(s) for s in operands], [tuple(s) for s in results]
        if not check_kernel(kernel, *shapes, numbers, len(batch)):
            break
    config = {key: f"{value} : ui8" for key, value in numbers.items()}
    config |= {key: f"{numbers[key]} : i32" for key in kernel.numbers}
    config |= {key: str(bool(numbers[key])).lower() for key in kernel.switches}
    taken, given = (
        [_Buffer(elements[kind], shape) for kind, shape in zip(kinds, side, strict=True)]
        for kinds, side in zip(types.split(">"), (operands, results), strict=True)
    )
    attributes = {"mhlo.frontend_attributes": f'{{num_batch_dims = "{len(batch)}"}}'}
    return _Call(name, taken, given, attributes, config, layouts=["operand", "result"])


def _layout(rank: int) -> str:
    order = [rank - 2, rank - 1, *range(rank - 3, -1, -1)] if rank > 1 else [0] * rank
    return f"dense<{order if rank else ''}> : tensor<{rank}xindex>"


def right_program(draw: random.Random, name: str) -> tuple[str, int]:
    """Returns a program that calls a kernel as JAX does, and how many results it has."""
    call = _kernel(draw, name)
    return call.program(), len(call.results)


def _other(draw: random.Random) -> _Call:
    """Returns a call of something else, with any operands and results."""
    buffers = [
        _Buffer(draw.choice(("f32", "i32", "i1")), [draw.randrange(5) for _ in range(rank)])
        for rank in (1, 2, 0, 3)
    ]
    operands = [draw.choice(buffers) for _ in range(draw.choice((0, 1, 1, 1, 2, 4, 6)))]
    results = [draw.choice(operands or buffers) for _ in range(draw.choice((0, 1, 1, 1, 2)))]
    call = _Call(draw.choice((*XLAS, *SDY_CALLS, *REFUSED)), operands, results, {})
    if call.name == "Sharding" or draw.random() < 0.2:
        call.attributes["mhlo.sharding"] = draw.choice(_SHARDINGS)
    if draw.random() < 0.5:
        key = draw.choice(("backend_config", "mhlo.backend_config", "mhlo.attributes"))
        call.attributes[key] = draw.choice(_CONFIGS)
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        draw.choice((_functions, _aliases, _element, _attribute, _module))(call, draw)
    return call


def _size(call: _Call, draw: random.Random) -> None:
    buffers = [b for b in (*call.operands, *call.results) if b.shape]
    if buffers:
        shape = draw.choice(buffers).shape
        shape[draw.randrange(len(shape))] = draw.choice(_SIZES)


def _rank(call: _Call, draw: random.Random) -> None:
    for buffer in draw.sample([*call.operands, *call.results], 1) if call.operands else ():
        buffer.shape = [2] * draw.randrange(5)


def _count(call: _Call, draw: random.Random) -> None:
    side = draw.choice((call.operands, call.results))
    if side and draw.random() < 0.7:
        side.pop(draw.randrange(len(side)))
    else:
        side.append(_Buffer("f32", [2, 2]))


def _value(call: _Call, draw: random.Random) -> None:
    for key in draw.sample(sorted(call.config or ()), min(len(call.config or ()), 1)):
        assert call.config is not None
        call.config[key] = f"{draw.choice(_NUMBERS)} : {draw.choice(('ui8', 'i32', 'i64'))}"


def _keys(call: _Call, draw: random.Random) -> None:
    call.config = draw.choice((None, {}, {"mode": "65 : ui8"}, {"nope": '"text"'}))


def _version(call: _Call, draw: random.Random) -> None:
    call.attributes["api_version"] = f"{draw.randrange(5)} : i32"


def _batch(call: _Call, draw: random.Random) -> None:
    dims = draw.choice(("-1", "1", "2", "99", "x", str(1 << 70)))
    call.attributes["mhlo.frontend_attributes"] = f'{{num_batch_dims = "{dims}"}}'


def _split(call: _Call, draw: random.Random) -> None:
    call.attributes["mhlo.sharding"] = draw.choice(_SHARDINGS)


def _name(call: _Call, draw: random.Random) -> None:
    call.name = draw.choice((*KERNELS, *XLAS, *SDY_CALLS, *REFUSED))


def _layouts(call: _Call, draw: random.Random) -> None:
    call.layouts = draw.choice(([], ["operand"], ["result"], ["operand", "result"]))


def _functions(call: _Call, draw: random.Random) -> None:
    named = draw.choice(("@less", "@main", "@nowhere", "@less, @less", '"less"', "@less::@less"))
    call.attributes["called_computations"] = f"[{named}]"


def _aliases(call: _Call, draw: random.Random) -> None:
    # (StableHLO's verifier ends the process at those of a call without results.)
    if not call.results:
        return
    indices = draw.choice(("", "0", "1", "9"))
    call.attributes["output_operand_aliases"] = (
        f"[#stablehlo.output_operand_alias<output_tuple_indices = [{indices}], "
        f"operand_index = {draw.randrange(4)}, operand_tuple_indices = []>]"
    )


def _element(call: _Call, draw: random.Random) -> None:
    elements = ("f32", "f64", "i32", "i64", "i1", "i4", "ui8", "bf16", "complex<f32>", "f8E4M3FN")
    buffers = [*call.operands, *call.results]
    for buffer in draw.sample(buffers, min(len(buffers), draw.choice((1, 1, 2)))):
        buffer.element = draw.choice(elements)


def _attribute(call: _Call, draw: random.Random) -> None:
    key = draw.choice(
        (
            *("mhlo.literal", "custom_call_schedule", "mhlo.backend_config", "mhlo.attributes"),
            *("sdy.sharding_rule", "error_message", "is_stable", "mhlo.frontend_attributes"),
            *("has_side_effect", "result_tilings", "rng_algorithm", "mhlo.version", "sdy.sharding"),
        )
    )
    call.attributes[key] = draw.choice(
        (
            *("1 : i32", "true", '"x"', "[]", "[1]", "{}", '{a = "b"}', "dense<0> : tensor<1xi64>"),
            "#sdy.op_sharding_rule<([i])->([i]) {i=4}, custom>",
            "#sdy.sharding_per_value<[<mesh<[]>, []>]>",
        )
    )


def _module(call: _Call, draw: random.Random) -> None:
    attribute = draw.choice(
        (
            *("mhlo.num_partitions", "mhlo.num_replicas", "mhlo.frontend_attributes", "jax.x"),
            *(
                "mhlo.is_dynamic",
                "mhlo.use_auto_spmd_partitioning",
                "mhlo.cross_program_prefetches",
            ),
        )
    )
    value = draw.choice(("1 : i32", "0 : i32", "-1 : i64", '"x"', "[]", "{}", '{a = "b"}', "true"))
    call.module = f"attributes {{{attribute} = {value}}} "


_WRONGS: tuple[Callable[[_Call, random.Random], None], ...] = (
    _size, _size, _size, _rank, _count, _value, _keys, _version, _batch, _split, _name,
    _layouts, _functions, _aliases, _element, _element, _attribute, _attribute, _module,
)  # fmt: skip


def odd_program(draw: random.Random) -> tuple[str, int]:
    """Returns a program with a custom call, and how many results it has."""
    if draw.random() < 0.3:
        call = _other(draw)
    else:
        call = _kernel(draw, draw.choice(sorted(KERNELS)))
        for _ in range(draw.choice((0, 1, 1, 1, 2))):
            draw.choice(_WRONGS)(call, draw)
    return call.program(), len(call.results)
