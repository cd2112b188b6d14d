"""Custom calls with addresses, indices or random contents: none ends the proxy."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE
from harness.proxy.raw import Failed, RawClient, single
from shared_pathways_service.servers.devices.status_errors import Code
from shared_pathways_service.servers.proxy.program_checks.cpu_kernels import KERNELS
from shared_pathways_service.servers.proxy.program_checks.sdy_calls import SDY_CALLS
from shared_pathways_service.servers.proxy.program_checks.xla_calls import XLAS
from stress.fuzz.custom_calls import REFUSED, odd_program
from tests.servers.proxy.conftest import MakeClient, StartProxy
from tests.servers.proxy.program_checks.custom_call_programs import call_of, refused

SPARSE = """
module {
  func.func public @main(%x: tensor<4xf32>) -> tensor<3xf32> {
    %p = stablehlo.constant dense<[POINTERS]> : tensor<4xi32>
    %c = stablehlo.constant dense<[COLUMNS]> : tensor<4xi32>
    %r = "stablehlo.custom_call"(%x, %p, %c, %x) {call_target_name = "cpu_csr_sparse_dense_ffi",
      mhlo.backend_config = {}}
      : (tensor<4xf32>, tensor<4xi32>, tensor<4xi32>, tensor<4xf32>) -> tensor<3xf32>
    return %r : tensor<3xf32>
  }
}
"""


ALIAS = (
    "#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 2, "
    "operand_tuple_indices = []>"
)


# ---- through a proxy


@pytest.fixture
def session(start_proxy: StartProxy, connect: MakeClient) -> Iterator[RawClient]:
    """A session with a proxy that is a process, which lives on."""
    proxy = start_proxy()
    assert proxy.ready is not None, "\n".join(proxy.lines)
    address = f"unix:{proxy.ready['socket']}"
    client = connect(address)
    witness = connect(address)
    yield client
    for one in (client, witness):
        (doubled,) = one.execute(one.compile(DOUBLE, [0]), [one.put(np.ones(4), single(0))])
        assert one.fetch(doubled).tolist() == [2.0] * 4
    assert proxy.stop() == 0, "\n".join(proxy.lines[-30:])


def test_an_address_from_the_client_is_not_dereferenced(session: RawClient) -> None:
    for name in ("InspectSharding", "CustomSPMDPartitioning", "xla_python_cpu_callback"):
        for attributes in ("", ', backend_config = "\\10\\27\\00\\00\\00\\00\\00\\00"'):
            sharded = attributes + ', mhlo.sharding = "{replicated}", api_version = 1 : i32'
            with pytest.raises(Failed, match=f"custom call '{name}'") as raised:
                session.compile(call_of(name, sharded), [0, 1])
            assert raised.value.code == Code.UNIMPLEMENTED


def test_indices_of_a_sparse_matrix_stay_inside_its_buffers(session: RawClient) -> None:
    x = session.put(np.arange(4), single(0))

    def run(pointers: str, columns: str) -> list[float]:
        program = SPARSE.replace("POINTERS", pointers).replace("COLUMNS", columns)
        (result,) = session.execute(session.compile(program, [0]), [x])
        values: list[float] = session.fetch(result).tolist()
        return values

    assert run("0, 1, 3, 4", "0, 1, 2, 3") == [0.0, 5.0, 9.0]
    # Beyond the end the last entry and the last column are meant.
    assert run("0, 1, 3, 2000000000", "0, 1, 2, 2000000000") == [0.0, 5.0, 9.0]
    assert run("-2000000000, 1, 3, 4", "-2000000000, 1, 2, 3") == [0.0, 5.0, 9.0]


def test_random_custom_calls_do_not_end_the_proxy(session: RawClient) -> None:
    draw = random.Random(4)
    ran = refusals = 0
    for _ in range(200):
        program, results = odd_program(draw)
        try:
            session.ready(*session.execute(session.compile(program, [0]), [], results))
            ran += 1
        except Failed:
            refusals += 1
    assert ran > 10
    assert refusals > 80


def test_every_name_is_drawn() -> None:
    draw = random.Random(5)
    drawn = {
        found[1]
        for found in (
            re.search(r'call_target_name = "([^"]*)"', odd_program(draw)[0]) for _ in range(6000)
        )
        if found
    }
    assert drawn == {*KERNELS, *XLAS, *SDY_CALLS, *REFUSED}


@pytest.mark.parametrize(
    ("element", "attributes", "said"),
    [
        ("f32", "", "i32 or i64"),
        ("complex<f32>", "", "i32 or i64"),
        (
            "i32",
            f", output_operand_aliases = [{ALIAS}]",
            "output_operand_aliases must not be set",
        ),
    ],
)
def test_a_sparse_kernel_reads_only_its_buffers(element: str, attributes: str, said: str) -> None:
    program = f"""
module {{
  func.func public @main(%v: tensor<4xi32>, %p: tensor<5x{element}>, %c: tensor<4x{element}>,
      %d: tensor<3xi32>) -> tensor<4xi32> {{
    %r = "stablehlo.custom_call"(%v, %p, %c, %d) {{call_target_name = "cpu_csr_sparse_dense_ffi",
      mhlo.backend_config = {{}}{attributes}}}
      : (tensor<4xi32>, tensor<5x{element}>, tensor<4x{element}>, tensor<3xi32>) -> tensor<4xi32>
    return %r : tensor<4xi32>
  }}
}}
"""
    assert said in refused(program).message
