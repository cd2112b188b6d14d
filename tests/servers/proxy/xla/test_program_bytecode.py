"""Programs in bytecode: at some of them StableHLO's verifier ends the process."""

from __future__ import annotations

import io
from typing import Any

import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from harness.proxy.programs import DOUBLE
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.xla import mlir

ALIASED = """
module @aliased {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = stablehlo.custom_call @dce_sink(%x) {has_side_effect = true, output_operand_aliases = [
      #stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0,
      operand_tuple_indices = []>]} : (tensor<4xf32>) -> tensor<4xf32>
    return %x : tensor<4xf32>
  }
}
"""
SINK = DOUBLE.replace(
    "%n = ", "stablehlo.custom_call @dce_sink(%x) : (tensor<4xf32>) -> ()\n    %n = "
)
STRINGS = SINK.replace("module @double", 'module @double attributes {jax.x = "stablehlo"}')


def without_results(module: Any) -> Any:
    """Takes the results off a program's custom call; nothing verifies it."""
    call: Any = module.body.operations[0].regions[0].blocks[0].operations[0].operation
    with module.context, ir.Location.unknown():
        attributes = {entry.name: entry.attr for entry in _entries(call)}
        ir.Operation.create(
            call.name,
            results=[],
            operands=list(call.operands),
            attributes=attributes,
            ip=ir.InsertionPoint(call),
        )
        call.erase()
    return module


def _entries(operation: Any) -> list[Any]:
    return [operation.attributes[index] for index in range(len(operation.attributes))]


def plain(module: Any) -> bytes:
    data = io.BytesIO()
    with module.context:
        module.operation.write_bytecode(file=data)
    return data.getvalue()


def portable(module: Any) -> bytes:
    """The module itself becomes one of VHLO."""
    with module.context:
        version = stablehlo.get_minimum_version()
        data: bytes = stablehlo.serialize_portable_artifact(module, version)
    return data


def test_aliases_without_results_do_not_end_the_process() -> None:
    for write, said in (
        (portable, "a custom call with output_operand_aliases, but without results"),
        (plain, "not a portable artifact"),
    ):
        data = write(without_results(mlir.parse(ALIASED.encode())))
        with pytest.raises(StatusError, match=said) as raised:
            mlir.parse(data)
        assert raised.value.code is Code.INVALID_ARGUMENT


def test_zeros_behind_names_need_not_be_there() -> None:
    # MLIR does not look at them.
    data = plain(without_results(mlir.parse(ALIASED.encode())))
    assert b"\0stablehlo\0" in data
    changed = data.replace(b"stablehlo\0", b"stablehlox").replace(b"custom_call\0", b"custom_callx")
    with pytest.raises(StatusError, match="not a portable artifact"):
        mlir.parse(changed)


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(StatusError, match="bytecode is incomplete"):
        mlir.parse(b"ML\xefR\x0dMLIR stablehlo.custom_call")


@pytest.mark.parametrize("text", [ALIASED, SINK, STRINGS])
def test_portable_artifacts_with_custom_calls_are_read(text: str) -> None:
    module = mlir.parse(text.encode())
    name = mlir.name_of(module)
    assert mlir.name_of(mlir.parse(portable(module))) == name


def test_bytecode_without_custom_calls_is_read() -> None:
    assert mlir.name_of(mlir.parse(plain(mlir.parse(DOUBLE.encode())))) == "double"
