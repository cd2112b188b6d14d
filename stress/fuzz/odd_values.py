"""Values that requests are made of: programs, shapes, types, devices, strides and options."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jaxlib import xla_client

from harness.proxy.programs import DOUBLE, compile_options, sharded_double
from harness.proxy.raw import F32
from shared_pathways_service.protocol.ifrt import core_pb2
from stress.fuzz.shardings import delimited, field

SUM = """
module @sum {
  func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<f32>) {
    %n = stablehlo.add %x, %y : tensor<4xf32>
    %c = stablehlo.constant dense<1.0> : tensor<f32>
    return %n, %c : tensor<4xf32>, tensor<f32>
  }
}
"""
_DONATING = sharded_double(4, ", tf.aliasing_output = 0 : i32")
PROGRAMS = (
    (DOUBLE, 1),
    (SUM, 1),
    (sharded_double(4), 4),
    (_DONATING, 4),
    (sharded_double(8), 8),
    ("module @wrong { func.func public @main() { return } } }", 1),
    ("", 1),
    (DOUBLE, 2),
)

SHAPES = ((4,), (8,), (), (0,), (2, 4), (3,), (1 << 20,), (-1,), (1 << 40,), (1,) * 40)
DTYPES = (F32, F32, F32, core_pb2.DTypeProto.KIND_S4, core_pb2.DTypeProto.KIND_BF16, 0, 77, 5)
DEVICES: tuple[list[int], ...] = (
    [0],
    [1],
    [7],
    [8],
    [-1],
    [0, 1],
    [1, 0],
    [3, 4],
    [0, 0],
    [],
    list(range(4)),
    list(range(8)),
)
#: Sixteen, of bytes.
STRIDES = (
    0, 1, 4, -4, 8, -8, 16, -12, 4096, -4096,
    1 << 31, -(1 << 31), 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip

#: Options by name that a client may send along: XLA's own, some with a value of a wrong type, and
#: those that ended the process once.
_OVERRIDES: tuple[tuple[str, Any], ...] = (
    ("xla_cpu_enable_fast_math", True),
    ("xla_unsupported_crash_on_hlo_pass_noop_change", True),
    ("xla_unsupported_crash_on_hlo_pass_silent_hlo_change", True),
    ("xla_backend_optimization_level", 9),
    ("xla_backend_optimization_level", "high"),
    ("xla_disable_all_hlo_passes", True),
    ("xla_force_host_platform_device_count", -1),
    ("xla_llvm_disable_expensive_passes", True),
    ("xla_embed_ir_in_executable", True),
    ("xla_no_such_option", 1),
    ("", ""),
)
_NUMBERS = (0, 1, 2, 7, 8, 99, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, (1 << 64) - 7)


def odd_options(devices: Sequence[int], picks: Sequence[int]) -> bytes:
    """Returns compile options, each pick but the first changing a number in them or naming one."""
    if len(picks) < 2:
        return compile_options(devices)
    options = core_pb2.XlaCompileOptionsProto.FromString(compile_options(devices))
    build = b""
    for first, second in itertools.pairwise(picks):
        if first == 15:
            name, value = _OVERRIDES[second % len(_OVERRIDES)]
            parsed = xla_client.CompileOptions.ParseFromString(options.compile_options)
            parsed.env_option_overrides = [*parsed.env_option_overrides, (name, value)]
            options.compile_options = parsed.SerializeAsString()
        else:
            # Numbers of xla.ExecutableBuildOptionsProto: the last one counts.
            number = 1 + (first + 3 * second) % 26
            build += (
                field(number, _NUMBERS[second % len(_NUMBERS)])
                if first % 4
                else _of_another_type(number, second)
            )
    if build:
        options.compile_options += delimited(3, build)
    return options.SerializeToString()


def _of_another_type(number: int, pick: int) -> bytes:
    """Returns a field as text, as a message, or in four or eight bytes, whatever it should be."""
    value = _NUMBERS[pick % len(_NUMBERS)]
    return (
        delimited(number, b"text"),
        delimited(number, field(1 + pick, value)),
        delimited(number, b"\xff\xfe"),
        bytes([(number << 3 | 5) & 0x7F | 0x80, number >> 4]) + bytes([pick] * 4),
        bytes([(number << 3 | 1) & 0x7F | 0x80, number >> 4]) + bytes([pick] * 8),
    )[pick % 5]
