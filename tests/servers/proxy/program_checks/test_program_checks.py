"""Programs that a proxy refuses: with foreign operations, and types that end XLA's process."""

from __future__ import annotations

import numpy as np
import pytest

from harness.proxy.programs import DOUBLE
from harness.proxy.raw import Failed, RawClient, single
from shared_pathways_service.servers.devices.dtypes import (
    KIND_OF_ELEMENT,
    SIX_BIT_ELEMENTS,
    TWO_BIT_ELEMENTS,
)
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.program_checks.call_graph import CallGraph
from shared_pathways_service.servers.proxy.program_checks.program_checks import check_program
from shared_pathways_service.servers.xla import mlir
from tests.servers.proxy.conftest import MakeClient, StartProxy

ZEROS = """
module {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %z = stablehlo.constant dense<0.0> : tensor<TYPE>
    %0 = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<TYPE>) -> tensor<0xTYPE>
    %1 = stablehlo.convert %0 : (tensor<0xTYPE>) -> tensor<0xf32>
    %2 = stablehlo.concatenate %x, %1, dim = 0 : (tensor<4xf32>, tensor<0xf32>) -> tensor<4xf32>
    return %2 : tensor<4xf32>
  }
}
"""
SORT = """
module {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xTYPE>
    %1 = "stablehlo.sort"(%0) <{dimension = 0 : i64}> ({
      ^bb0(%a: tensor<TYPE>, %b: tensor<TYPE>):
        %c = stablehlo.compare LT, %a, %b : (tensor<TYPE>, tensor<TYPE>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
    }) : (tensor<4xTYPE>) -> tensor<4xTYPE>
    %2 = stablehlo.convert %1 : (tensor<4xTYPE>) -> tensor<4xf32>
    return %2 : tensor<4xf32>
  }
}
"""
RETURNED = """
module {
  func.func public @main(%x: tensor<4xf32>) -> tensor<0xTYPE> {
    %z = stablehlo.constant dense<> : tensor<0xTYPE>
    return %z : tensor<0xTYPE>
  }
}
"""
NESTED = """
module {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %r = stablehlo.while(%i = %x) : tensor<4xf32>
      cond {
        %z = stablehlo.constant dense<> : tensor<0xTYPE>
        %t = stablehlo.constant dense<false> : tensor<i1>
        stablehlo.return %t : tensor<i1>
      } do {
        stablehlo.return %i : tensor<4xf32>
      }
    return %r : tensor<4xf32>
  }
}
"""
ARGUMENT = DOUBLE.replace("f32", "TYPE")
PROGRAMS = {
    "argument": ARGUMENT,
    "nested": NESTED,
    "returned": RETURNED,
    "sort": SORT,
    "zeros": ZEROS,
}


def refused(program: str) -> StatusError:
    with pytest.raises(StatusError) as raised:
        check_program(mlir.parse(program.encode()), "cpu", 1)
    return raised.value


def test_operations_of_other_dialects_are_refused() -> None:
    error = refused(DOUBLE.replace("stablehlo.add %x, %x", "arith.addf %x, %x"))
    assert error.code is Code.INVALID_ARGUMENT
    assert "arith.addf" in error.message


@pytest.mark.parametrize("element", SIX_BIT_ELEMENTS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_that_compute_with_six_bit_floats_are_refused_by_name(
    program: str, element: str
) -> None:
    error = refused(program.replace("TYPE", element))
    assert error.code is Code.UNIMPLEMENTED
    assert f"and {element} are not supported: XLA crashes" in error.message
    assert "stablehlo." in error.message


#: Programs of one conversion or movement.
ONE_OPERATION = """
func.func @main(%x: tensor<FROM>) -> tensor<TO> {
  %y = stablehlo.OPERATION : (tensor<FROM>) -> tensor<TO>
  return %y : tensor<TO>
}
"""
MOVING = [
    ("convert %x", "4xf32", "4xTYPE"),
    ("broadcast_in_dim %x, dims = [0]", "4xTYPE", "4x2xTYPE"),
    ("reshape %x", "4xTYPE", "2x2xTYPE"),
]
EMPTY_OR_READ = [
    ("convert %x", "0x3xf32", "0x3xTYPE", "programs with empty arrays and"),
    ("reshape %x", "3x0xTYPE", "0xTYPE", "programs with empty arrays and"),
    ("convert %x", "4xTYPE", "4xf32", "conversions of"),
]


def one_operation(operation: str, given: str, result: str, element: str) -> bytes:
    text = ONE_OPERATION.replace("OPERATION", operation).replace("FROM", given)
    return text.replace("TO", result).replace("TYPE", element).encode()


@pytest.mark.parametrize("element", SIX_BIT_ELEMENTS)
@pytest.mark.parametrize(("operation", "given", "result"), MOVING)
def test_programs_may_convert_to_six_bit_floats_and_move_them(
    operation: str, given: str, result: str, element: str
) -> None:
    program = mlir.parse(one_operation(operation, given, result, element))
    check_program(program, "cpu", 1)
    with pytest.raises(StatusError, match=f"programs over several devices and {element} are"):
        check_program(program, "cpu", 4)


@pytest.mark.parametrize("element", SIX_BIT_ELEMENTS)
@pytest.mark.parametrize(("operation", "given", "result", "words"), EMPTY_OR_READ)
def test_empty_and_converted_six_bit_floats_are_refused(
    operation: str, given: str, result: str, words: str, element: str
) -> None:
    error = refused(one_operation(operation, given, result, element).decode())
    assert error.code is Code.UNIMPLEMENTED
    assert error.message.startswith(f"{words} {element} are not supported")


#: With which programs may do more.
ORDINARY = {*KIND_OF_ELEMENT} - {"i1", *SIX_BIT_ELEMENTS}


@pytest.mark.parametrize("element", sorted(ORDINARY))
def test_other_elements_are_not_refused(element: str) -> None:
    check_program(mlir.parse(ARGUMENT.replace("TYPE", element).encode()), "cpu", 1)


@pytest.mark.parametrize("element", TWO_BIT_ELEMENTS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_two_bit_integers_are_refused_over_several_devices(program: str, element: str) -> None:
    zero = program.replace("dense<0.0>", "dense<0>").replace("TYPE", element)
    module = mlir.parse(zero.encode())
    check_program(module, "cpu", 1)
    check_program(module, "tpu", 4)
    with pytest.raises(
        StatusError, match=f"programs over several devices with {element} are"
    ) as raised:
        check_program(module, "cpu", 4)
    assert raised.value.code is Code.UNIMPLEMENTED


@pytest.mark.parametrize("element", TWO_BIT_ELEMENTS)
def test_concatenated_integers_of_two_bits_are_refused(element: str) -> None:
    program = """
func.func @main(%x: tensor<4xTYPE>) -> tensor<8xTYPE> {
  %y = stablehlo.concatenate %x, %x, dim = 0 : (tensor<4xTYPE>, tensor<4xTYPE>) -> tensor<8xTYPE>
  return %y : tensor<8xTYPE>
}
"""
    module = mlir.parse(program.replace("TYPE", element).encode())
    with pytest.raises(StatusError, match=f"concatenations of {element} are"):
        check_program(module, "cpu", 1)
    check_program(module, "tpu", 1)


@pytest.mark.parametrize("element", sorted(ORDINARY - {*TWO_BIT_ELEMENTS}))
def test_other_elements_are_not_refused_over_several_devices(element: str) -> None:
    check_program(mlir.parse(ARGUMENT.replace("TYPE", element).encode()), "cpu", 4)


def test_a_text_that_reads_like_a_type_is_no_type() -> None:
    check_program(mlir.parse(DOUBLE.replace("@main", "@f6E2M3FN").encode()), "cpu", 1)


# ---- through a proxy


@pytest.fixture
def session(start_proxy: StartProxy, connect: MakeClient) -> RawClient:
    """A session with a proxy that is a process."""
    proxy = start_proxy()
    assert proxy.ready is not None, "\n".join(proxy.lines)
    return connect(f"unix:{proxy.ready['socket']}")


def test_a_program_with_six_bit_floats_does_not_end_the_proxy(session: RawClient) -> None:
    for element in SIX_BIT_ELEMENTS:
        for program in PROGRAMS.values():
            with pytest.raises(Failed, match=f"and {element} are not supported") as raised:
                session.compile(program.replace("TYPE", element), [0])
            assert raised.value.code == Code.UNIMPLEMENTED


def test_no_other_element_inside_a_program_ends_the_proxy(session: RawClient) -> None:
    ones = session.put(np.ones(4), single(0))
    failed = set()
    for element in sorted(ORDINARY):
        zero = "dense<(0.0, 0.0)>" if "complex" in element else "dense<0>"
        zero = zero if "f" not in element or "complex" in element else "dense<0.0>"
        for program in (SORT, ZEROS.replace("dense<0.0>", zero)):
            try:
                compiled = session.compile(program.replace("TYPE", element), [0])
            except Failed:
                failed.add(element)
                continue
            (result,) = session.execute(compiled, [ones])
            assert session.fetch(result).size == 4
    assert failed == {"complex<f32>", "complex<f64>"}  # which have no order


def of_functions(functions: str, body: str) -> str:
    return f"""
module {{
  {functions}
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
    {body}
    return %r : tensor<4xf32>
  }}
}}
"""


CALL = "%r = call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>"
CUSTOM = (
    '%r = "stablehlo.custom_call"(%x) {{call_target_name = "{}", called_computations = [@{}]}} '
    ": (tensor<4xf32>) -> tensor<4xf32>"
)
TYPE = "(tensor<4xf32>) -> tensor<4xf32>"
HEAD = "func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32>"
SAME = f"{HEAD.replace('@f', '@g')} {{ return %x : tensor<4xf32> }}"


def chain(length: int) -> str:
    """Returns functions of which each calls the next."""
    names = ["@f", *(f"@f{number}" for number in range(1, length))]
    bodies = [f"%r = call {name}(%x) : {TYPE}" for name in names[1:]]
    bodies.append("%r = stablehlo.negate %x : tensor<4xf32>")
    return "\n".join(
        f"{HEAD.replace('@f', name)} {{ {body} return %r : tensor<4xf32> }}"
        for name, body in zip(names, bodies, strict=True)
    )


@pytest.mark.parametrize(
    ("functions", "body", "said"),
    [
        (f"{HEAD} {{ {CALL} return %r : tensor<4xf32> }}", CALL, "f calls itself"),
        (HEAD, CALL, "f is called but has no body"),
        (chain(1200), CALL, "1000 deep"),
        ("", CUSTOM.format("MoveToHost", "zz"), "MoveToHost must not have called_computations"),
        (SAME, CUSTOM.format("mhlo.erf", "g"), "mhlo.erf must not have called_computations"),
        ("", CUSTOM.format("TopK", "main"), "main calls itself"),
        ("", CUSTOM.format("TopK", "zz"), "zz is called but has no body"),
        (SAME, CUSTOM.format("\\FF\\FE", "g"), "not UTF-8"),
    ],
)
def test_calls_at_which_xla_would_end_the_process(functions: str, body: str, said: str) -> None:
    with pytest.raises(StatusError, match=said) as caught:
        check_program(mlir.parse(of_functions(functions, body).encode()), "cpu", 1)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert "Traceback" not in caught.value.message


def test_an_error_of_the_checks_is_not_taken_for_text_that_is_not_utf8(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(CallGraph, "add", fail)
    with pytest.raises(RuntimeError, match="out of order"):
        check_program(mlir.parse(DOUBLE.encode()), "cpu", 1)


def test_a_module_has_only_what_jax_sets() -> None:
    plain = of_functions("", "%r = stablehlo.negate %x : tensor<4xf32>")

    def having(attributes: str) -> bytes:
        return plain.replace("module {", f"module attributes {{{attributes}}} {{").encode()

    with pytest.raises(StatusError, match=r"mhlo\.input_output_alias, which JAX never sets"):
        check_program(mlir.parse(having("mhlo.input_output_alias = [3 : i32]")), "cpu", 1)
    assert not check_program(
        mlir.parse(having("mhlo.num_partitions = 1 : i32, jax.x = true")), "cpu", 1
    )


def test_functions_may_be_called_often_and_deep() -> None:
    assert not check_program(mlir.parse(of_functions(chain(900), CALL).encode()), "cpu", 1)
