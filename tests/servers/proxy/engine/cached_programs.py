"""Programs that are run through a compile cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import RawClient, single, split
from shared_pathways_service.servers.proxy.engine.compile_cache import CompileCache

FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)
MACHINE = b"a machine"

#: One that calls LAPACK, and whose result depends on every bit of its input.
CHOLESKY = """
module @cholesky {
  func.func public @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
    %n = stablehlo.cholesky %x, lower = true : tensor<2x2xf32>
    return %n : tensor<2x2xf32>
  }
}
"""

#: What makes its result of nothing, as a function that initialises parameters does.
COUNT = """
module @count attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}) {
    %n = stablehlo.iota dim = 0 : tensor<8xf32>
    return %n : tensor<8xf32>
  }
}
"""

MakeCache = Callable[..., CompileCache]


def entries(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.xla"))


def run_double(client: RawClient) -> bytes:
    (result,) = client.execute(client.compile(DOUBLE, [0]), [client.put(FOUR, single(0))])
    return client.fetch(result).tobytes()


def run_sharded(client: RawClient) -> bytes:
    program = client.compile(sharded_double(8), list(range(8)))
    (result,) = client.execute(program, [client.put(EIGHT, split(list(range(8))))])
    return client.fetch(result).tobytes()


def run_donating(client: RawClient) -> bytes:
    program = client.compile(sharded_double(4, ", jax.buffer_donor = true"), [0, 1, 2, 3])
    argument = client.put(EIGHT, split([0, 1, 2, 3]))
    (result,) = client.execute(program, [argument])
    data = client.fetch(result).tobytes()
    assert client.call("is_array_deleted", array_handle=argument).deleted
    return data


def run_lapack(client: RawClient) -> bytes:
    matrix = np.array([[2.0, 0.7], [0.7, 3.3]], np.float32)
    (result,) = client.execute(client.compile(CHOLESKY, [0]), [client.put(matrix, single(0))])
    return client.fetch(result).tobytes()


def run_without_arguments(client: RawClient) -> bytes:
    (result,) = client.execute(client.compile(COUNT, [0, 1, 2, 3]), [])
    return client.fetch(result).tobytes()


RUNS = [run_double, run_sharded, run_donating, run_lapack, run_without_arguments]
