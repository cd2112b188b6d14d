"""Programs for a proxy as text, and the options to compile them with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib import xla_client

from shared_pathways_service.protocol.ifrt import core_pb2

__all__ = [
    "DOUBLE",
    "ENDLESS",
    "compile_options",
    "sharded_double",
    "sharded_endless",
    "sharded_sum",
]

ENDLESS = """
module @endless {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %r = stablehlo.while(%i = %x) : tensor<4xf32>
      cond {
        %t = stablehlo.constant dense<true> : tensor<i1>
        stablehlo.return %t : tensor<i1>
      } do {
        %n = stablehlo.add %i, %i : tensor<4xf32>
        stablehlo.return %n : tensor<4xf32>
      }
    return %r : tensor<4xf32>
  }
}
"""
DOUBLE = """
module @double {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %n = stablehlo.add %x, %x : tensor<4xf32>
    return %n : tensor<4xf32>
  }
}
"""


def sharded_double(devices: int, attributes: str = "") -> str:
    """A program over several devices, eight elements split among them."""
    sharding = f'mhlo.sharding = "{{devices=[{devices}]<=[{devices}]}}"'
    return f"""
module @sharded_double attributes {{mhlo.num_partitions = {devices} : i32}} {{
  func.func public @main(%x: tensor<8xf32> {{{sharding}{attributes}}})
      -> (tensor<8xf32> {{{sharding}}}) {{
    %n = stablehlo.add %x, %x : tensor<8xf32>
    return %n : tensor<8xf32>
  }}
}}
"""


def sharded_sum(devices: int, attributes: str = "") -> str:
    """As `sharded_double`, but adds the sum of all elements to each: the devices exchange data."""
    return (
        sharded_double(devices, attributes)
        .replace("@sharded_double", "@sharded_sum")
        .replace(
            "%n = stablehlo.add %x, %x : tensor<8xf32>",
            """%zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %all = stablehlo.broadcast_in_dim %sum, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %n = stablehlo.add %x, %all : tensor<8xf32>""",
        )
    )


def sharded_endless(devices: int) -> str:
    """As `ENDLESS`, its four elements split among devices."""
    attributes = f"attributes {{mhlo.num_partitions = {devices} : i32}}"
    sharding = f'{{mhlo.sharding = "{{devices=[{devices}]<=[{devices}]}}"}}'
    return ENDLESS.replace("@endless", f"@endless {attributes}").replace(
        "%x: tensor<4xf32>)", f"%x: tensor<4xf32> {sharding})"
    )


def compile_options(devices: Sequence[int]) -> bytes:
    """Serialised XlaCompileOptionsProto for partitions on devices."""
    options = xla_client.CompileOptions()
    options.num_partitions = len(devices)
    build = options.executable_build_options
    build.num_partitions = len(devices)
    build.use_spmd_partitioning = len(devices) > 1
    build.device_assignment = xla_client.DeviceAssignment.create(np.array([list(devices)]))
    return core_pb2.XlaCompileOptionsProto(
        compile_options=options.SerializeAsString()
    ).SerializeToString()
