"""Custom calls: which programs a proxy accepts, and which it refuses."""

from __future__ import annotations

import random
import re

import pytest
from jaxlib.cpu import _lapack, _sparse

from harness.proxy.programs import DOUBLE
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.callbacks.callback_calls import NAMES, CallbackChecker
from shared_pathways_service.servers.proxy.callbacks.compile_calls import COMPILE_CALLS
from shared_pathways_service.servers.proxy.program_checks.cpu_kernels import KERNELS
from shared_pathways_service.servers.proxy.program_checks.custom_calls import accepted_names
from shared_pathways_service.servers.proxy.program_checks.program_checks import check_program
from shared_pathways_service.servers.xla import mlir
from stress.fuzz.custom_calls import REFUSED, right_program
from tests.servers.proxy.program_checks.custom_call_programs import call_of, refused

CHOLESKY = """
module {
  func.func public @main(%x: tensor<2x3x3xf32>) -> tensor<2x3x3xf32> {
    %l, %i = "stablehlo.custom_call"(%x) {call_target_name = "lapack_spotrf_ffi",
      mhlo.backend_config = {uplo = 76 : ui8},
      mhlo.frontend_attributes = {num_batch_dims = "1"},
      operand_layouts = [dense<[1, 2, 0]> : tensor<3xindex>],
      result_layouts = [dense<[1, 2, 0]> : tensor<3xindex>, dense<0> : tensor<1xindex>]}
      : (tensor<2x3x3xf32>) -> (tensor<2x3x3xf32>, tensor<2xi32>)
    return %l : tensor<2x3x3xf32>
  }
}
"""
#: Stands for the layouts of `CHOLESKY`, to be left out.
OF_LAYOUTS = "operand_layouts"


# ---- the list


def test_every_kernel_of_jaxlib_is_on_the_list() -> None:
    assert {*_lapack.registrations(), *_sparse.registrations()} <= set(KERNELS)
    assert accepted_names("cpu") == KERNELS.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_unknown_names_are_refused_with_a_hint(name: str) -> None:
    error = refused(call_of(name))
    assert error.code is Code.UNIMPLEMENTED
    assert f"custom call {name!r}" in error.message
    assert "Instead: " in error.message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("InspectSharding", "inspect_array_sharding.*Instead: .*look at its .sharding"),
        ("CustomSPMDPartitioning", "custom_partitioning.*Instead: jax.shard_map"),
        ("xla_python_cpu_callback", "pure_callback.*Instead: return the value"),
        ("xla_ffi_partitioned_python_cpu_callback", "jax.debug.print.*Instead: return the value"),
        ("xla.sdy.PropagationBarrier", "Instead: "),
        ("tpu_custom_call", "Pallas.*interpret=True"),
    ],
)
def test_the_function_of_jax_is_named(name: str, told: str) -> None:
    assert re.search(told, refused(call_of(name)).message)


def test_calls_in_nested_regions_and_uncalled_functions_are_checked() -> None:
    nested = """
module {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %r = stablehlo.while(%i = %x) : tensor<4xf32>
      cond {
        %t = "stablehlo.custom_call"() {call_target_name = "InspectSharding"} : () -> tensor<i1>
        stablehlo.return %t : tensor<i1>
      } do {
        stablehlo.return %i : tensor<4xf32>
      }
    return %r : tensor<4xf32>
  }
}
"""
    assert "InspectSharding" in refused(nested).message
    helper = call_of("InspectSharding").replace("public @main", "private @helper")
    inner = "\n".join(helper.strip().splitlines()[1:-1])
    assert "InspectSharding" in refused(DOUBLE.rstrip().removesuffix("}") + inner + "\n}").message


# ---- kernels


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_kernels_are_accepted_as_jax_calls_them(name: str) -> None:
    program, _ = right_program(random.Random(name), name)
    check_program(mlir.parse(program.encode()), "cpu", 1)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("uplo = 76 : ui8", "uplo = 65 : ui8", r"uplo must be 76 \(L\) or 85 \(U\), not 65"),
        ("uplo = 76 : ui8", "", r"attributes must be \['uplo'\], not \[\]"),
        ("uplo = 76 : ui8", "uplo = 76 : ui8, n = 1 : i32", "attributes must be"),
        ("2x3x3xf32>) -> (tensor<2x3x3xf32>", "2x3x3xf32>) -> (tensor<2x3x2xf32>", "shapes"),
        ("tensor<2xi32>", "tensor<1xi32>", "shapes"),
        ('dims = "1"', 'dims = "2"', "num_batch_dims must be from 0 to 1, not 2"),
        ('dims = "1"', 'dims = "x"', "num_batch_dims must be from 0 to 1"),
        ("mhlo.backend_config = {uplo = 76 : ui8},", "", "typed interface"),
        ("mhlo.backend_config = {", "api_version = 3 : i32, mhlo.backend_config = {", "not by ver"),
        ("mhlo.frontend", 'mhlo.sharding = "{manual}", mhlo.frontend', "mhlo.sharding must not"),
        ("mhlo.frontend", "mhlo.literal = 1 : i32, mhlo.frontend", "the attribute mhlo.literal is"),
        ("mhlo.frontend", "schedule = 1 : i32, mhlo.frontend", "the attribute schedule is"),
        ('{num_batch_dims = "1"}', "{num_batch_dims = 1 : i32}", "must be of type text, not i32"),
        ('{num_batch_dims = "1"}', '"1"', "must be of type dictionary, not text"),
        ("uplo = 76 : ui8", "uplo = 76 : i32", "uplo must be of type ui8, not i32"),
        ("uplo = 76 : ui8", "uplo = 76 : i64", "uplo must be of type ui8, not i64"),
        (OF_LAYOUTS, "x", "num_batch_dims needs operand_layouts and result_layouts"),
    ],
)
def test_kernels_called_in_another_way_are_refused(old: str, new: str, told: str) -> None:
    assert not check_program(mlir.parse(CHOLESKY.encode()), "cpu", 1)
    program = CHOLESKY.replace(old, new)
    if old == OF_LAYOUTS:
        program = re.sub(r",\s*operand_layouts = .*\n.*result_layouts = .*\]}", "}", CHOLESKY)
    program = program.replace("return %l : tensor<2x3x3xf32>", "return %x : tensor<2x3x3xf32>")
    error = refused(program)
    assert error.code is Code.INVALID_ARGUMENT
    assert re.search(f"custom call lapack_spotrf_ffi.*{told}", error.message), error.message


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("Sharding", ""),
        ("Sharding", ', mhlo.sharding = "{replicated}", backend_config = "unspecified_dims=[1]"'),
        ("mhlo.erf", ', mhlo.backend_config = "x"'),
        ("mhlo.erf", ', mhlo.sharding = "{devices=[2]<=[2]}"'),
        ("mhlo.erf", ', mhlo.attributes = "x"'),
        ("TopK", ""),
        ("ApproxTopK", ", mhlo.backend_config = {reduction_dim = 7 : i64}"),
        ("shape_assertion", ""),
        ("dce_sink", ""),
    ],
)
def test_xlas_own_calls_with_other_operands_are_refused(name: str, attributes: str) -> None:
    assert refused(call_of(name, attributes)).code is Code.INVALID_ARGUMENT


ROW = "dense<0> : tensor<1xindex>"
SHARDED = ', mhlo.sharding = "{replicated}"'


@pytest.mark.parametrize(
    ("name", "attributes", "told"),
    [
        # XLA would read it, and JAX gives it to no call.
        *(
            (name, ", mhlo.literal = 1 : i32", "mhlo.literal is not")
            for name in ("mhlo.erf", "TopK")
        ),
        ("MoveToHost", ", custom_call_schedule = 7 : i32", "custom_call_schedule is not one"),
        ("MoveToHost", ", mhlo.custom_call_has_side_effect = 7", "side_effect is not one"),
        ("MoveToHost", SHARDED, "mhlo.sharding is not one"),
        ("MoveToHost", ", mhlo.backend_config = {a = 1}", "configuration: the attribute a is"),
        ("MoveToHost", ', backend_config = "x"', "backend_config must be empty, not 'x'"),
        ("MoveToHost", ", error_message = 1", "error_message is not one"),
        ("shape_assertion", ", error_message = 1 : i32", "must be of type text, not i32"),
        ("Sharding", ", mhlo.sharding = 1 : i32", "mhlo.sharding must be of type text, not i32"),
        (
            "Sharding",
            f"{SHARDED}, mhlo.frontend_attributes = {{a = 1 : i32}}",
            "mhlo.frontend_attributes: a must be of type text, not i32",
        ),
        (
            "Sharding",
            f"{SHARDED}, mhlo.frontend_attributes = [1]",
            "mhlo.frontend_attributes must be of type dictionary, not list",
        ),
        ("ApproxTopK", ", mhlo.backend_config = {top_k = 1 : i32}", "top_k must be of type i64"),
        ("ApproxTopK", ", mhlo.backend_config = {nope = 1 : i32}", "the attribute nope is not"),
        ("ApproxTopK", ", mhlo.backend_config = {recall_target = 1 : i64}", "be of type f32, not"),
        ("ApproxTopK", ", mhlo.backend_config = {is_fallback = 1 : i32}", "be of type bool, not"),
        ("PartialReduce", ", mhlo.backend_config = {log2_reduction = 1.0 : f64}", "type i64, not"),
        ("mhlo.erf", ", mhlo.frontend_attributes = {}", "mhlo.frontend_attributes is not one"),
        ("mhlo.erf", ', mhlo.attributes = {mhlo.sharding = "x"}', "JAX does not call it"),
        ("stablehlo.dynamic_top_k", ", is_stable = 1 : i32", "is_stable must be of type bool"),
    ],
)
def test_foreign_attributes_of_xlas_calls_are_refused_by_name(
    name: str, attributes: str, told: str
) -> None:
    error = refused(call_of(name, attributes))
    assert error.code is Code.INVALID_ARGUMENT
    assert f"custom call {name}: " in error.message
    assert told in error.message


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("Sharding", f"{SHARDED}, api_version = 1 : i32"),
        ("annotate_device_placement", ', mhlo.frontend_attributes = {_xla_placement = "x"}'),
        (
            "LayoutConstraint",
            f", operand_layouts = [{ROW}], result_layouts = [{ROW}]",
        ),
        ("mhlo.erf", ", mhlo.version = 1 : i64, mhlo.attributes = {}"),
        ("MoveToHost", ", has_side_effect = true, mhlo.backend_config = {}"),
    ],
)
def test_jaxs_attributes_of_xlas_calls_are_accepted(name: str, attributes: str) -> None:
    assert not check_program(mlir.parse(call_of(name, attributes).encode()), "cpu", 1)


@pytest.mark.parametrize("name", ["ragged_all_to_all", "AllocateBuffer"])
def test_calls_unsupported_on_a_cpu_are_refused_by_name(name: str) -> None:
    error = refused(call_of(name))
    assert error.code is Code.UNIMPLEMENTED
    assert "Instead" in error.message


def test_buffers_are_allocated_without_values_except_on_cpus() -> None:
    taking_one = call_of("AllocateBuffer")
    program = taking_one.replace('custom_call"(%x)', 'custom_call"()').replace(
        ": (tensor<4xf32>) -> tensor", ": () -> tensor"
    )
    for platform in ("cuda", "tpu"):
        assert not check_program(mlir.parse(program.encode()), platform, 1)
    assert not check_program(mlir.parse(program.replace("4xf32", "f32").encode()), "cuda", 1)
    assert refused(program).code is Code.UNIMPLEMENTED
    assert refused(taking_one, "cuda").code is Code.INVALID_ARGUMENT


def test_kernels_of_a_gpu_are_refused_on_the_cpu_and_the_other_way_round() -> None:
    assert "cusolver_potrf_ffi" in refused(call_of("cusolver_potrf_ffi")).message
    assert "a proxy for cuda does not run" in refused(CHOLESKY, "cuda").message


def test_proxies_on_gpus_refuse_functions_of_clients_by_name() -> None:
    """Even where the client serves them, and the program is one that a proxy on CPUs accepts."""
    functions = {
        **dict.fromkeys(NAMES, ", mhlo.backend_config = {index = 0 : ui64}, api_version = 4 : i32"),
        "InspectSharding": ', backend_config = "sps 0", has_side_effect = true',
        "CustomSPMDPartitioning": ', backend_config = "sps 0", api_version = 2 : i32',
    }
    assert functions.keys() == NAMES | COMPILE_CALLS.keys()
    for name, attributes in functions.items():
        program = call_of(name, attributes)
        if "partitioned" in name:  # JAX gives it no results
            program = re.sub(r"%r = ", "", program).replace("%r", "%x")
            program = re.sub(r"(: \(tensor<4xf32>\)) -> tensor<4xf32>", r"\1 -> ()", program)
        check_program(mlir.parse(program.encode()), "cpu", 2, CallbackChecker(1, 2))
        with pytest.raises(StatusError) as raised:
            check_program(mlir.parse(program.encode()), "cuda", 2, CallbackChecker(1, 2))
        assert raised.value.code is Code.UNIMPLEMENTED
        assert f"a proxy for cuda does not run custom call {name!r}" in raised.value.message
        assert "Instead: " in raised.value.message
