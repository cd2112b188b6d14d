"""Texts on which MLIR's parser would overflow its stack: refused before it reads them."""

from __future__ import annotations

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE
from harness.proxy.raw import Failed, single
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.xla import mlir
from shared_pathways_service.servers.xla.program_text import check_text
from tests.servers.proxy.conftest import MakeClient, StartProxy

DEEP = 200_000


def with_attribute(value: str) -> str:
    return DOUBLE.replace("module @double", f"module @double attributes {{jax.x = {value}}}")


def aliases(count: int) -> str:
    names = "\n".join(f"#a{number} = [#a{number - 1}]" for number in range(1, count))
    return f"#a0 = []\n{names}\n" + with_attribute(f"#a{count - 1}")


NO_RESULTS = """
module {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    "stablehlo.custom_call"(%x) {call_target_name = "dce_sink", output_operand_aliases = [
      #stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0,
      operand_tuple_indices = []>]} : (tensor<4xf32>) -> ( /* // */ )
    return %x : tensor<4xf32>
  }
}
""".replace("/* // */", "// no result\n")
#: MLIR's parser ends the process for each.
TOO_DEEP = {
    "lists": (with_attribute("[" * DEEP + "]" * DEEP), "400"),
    "dictionaries": (with_attribute("{a = " * DEEP + "1" + "}" * DEEP), "400"),
    "types": (with_attribute("tuple<" * DEEP + "i32" + ">" * DEEP), "400"),
    "functions": (with_attribute("() -> (" * DEEP + "i32" + ")" * DEEP), "400"),
    "modules": ("module {" * DEEP + "}" * DEEP, "400"),
    "locations": (DOUBLE + f" loc({'callsite(' * DEEP}unknown{' at unknown)' * DEEP})", "400"),
    "comments": (with_attribute("[// ]\n" * DEEP + "]" * DEEP), "400"),
    "texts": (with_attribute('["]",' * DEEP + "1" + "]" * DEEP), "400"),
    "minuses": (with_attribute(f"affine_map<(d0) -> ({'-' * DEEP} d0)>"), "affine_map"),
    "sums": (with_attribute(f"affine_set<(d0) : ({'d0 + ' * DEEP} d0 >= 0)>"), "affine_set"),
    "aliases": (aliases(DEEP), f"{DEEP} attributes"),
    "aliases of no results": (NO_RESULTS, "operations without results"),
}


@pytest.mark.parametrize("name", TOO_DEEP)
def test_what_would_overflow_the_stack_is_refused(name: str) -> None:
    text, said = TOO_DEEP[name]
    with pytest.raises(StatusError, match=said) as caught:
        mlir.parse(text.encode())
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "value",
    [
        '"' + "[" * DEEP + '"',
        '"\\22' + "(" * DEEP + '\\\\"',
        f"1 // {'[' * DEEP}\n",
        "[" * 300 + "]" * 300,
        "[" + "[], " * DEEP + "1]",
        "(i32) -> (i32)",
    ],
)
def test_brackets_that_nest_nothing_are_not_counted(value: str) -> None:
    assert mlir.name_of(mlir.parse(with_attribute(value).encode())) == "double"


def test_many_locations_may_have_names() -> None:
    names = "".join(f'#loc{number} = loc("f":{number}:1)\n' for number in range(1, 1000))
    check_text((names + DOUBLE).encode())


def test_bytecode_is_no_text() -> None:
    written = mlir.written(mlir.parse(with_attribute('"' + "[" * 1000 + '"').encode()))
    assert b"[" * 1000 in written
    assert mlir.name_of(mlir.parse(written)) == "double"


def test_a_text_that_is_too_deep_does_not_end_the_proxy(
    start_proxy: StartProxy, connect: MakeClient
) -> None:
    proxy = start_proxy()
    assert proxy.ready is not None, "\n".join(proxy.lines)
    client = connect(f"unix:{proxy.ready['socket']}")
    for text, said in TOO_DEEP.values():
        with pytest.raises(Failed, match=said) as raised:
            client.compile(text, [0])
        assert raised.value.code == Code.INVALID_ARGUMENT
    (doubled,) = client.execute(client.compile(DOUBLE, [0]), [client.put(np.ones(4), single(0))])
    assert client.fetch(doubled).tolist() == [2.0] * 4
    assert proxy.stop() == 0, "\n".join(proxy.lines[-30:])
