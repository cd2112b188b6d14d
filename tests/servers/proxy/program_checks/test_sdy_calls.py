"""Shardy's shardings as text, as clients before JAX 0.10.2 send them: accepted, or refused."""

from __future__ import annotations

import pytest
from jaxlib.mlir import ir

from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.program_checks.program_checks import check_program
from shared_pathways_service.servers.xla import mlir

#: As the library of jaxlib 0.9.2 writes a shard_map whose result is constrained.
MANUAL = r"""
module @manual attributes {
    mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22a\22=2, \22b\22=2]>}"},
    mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x4xf32> {mhlo.frontend_attributes = {
      xla.sdy.sharding = "#sdy.sharding<@mesh, [{\22a\22}, {\22b\22}]>"}}) -> (tensor<2x4xf32>) {
    %0 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%arg0) {has_side_effect = true,
        mhlo.frontend_attributes = {
        xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}, {\22b\22}]>]>",
        xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22, \22b\22}>"}}
        : (tensor<4x4xf32>) -> tensor<2x2xf32>
    %1 = call @xla.sdy.manual_computation_body(%0) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    %2 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%1) {has_side_effect = true,
        mhlo.frontend_attributes = {
        xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22, \22b\22}>",
        xla.sdy.out_shardings = "#sdy.sharding_per_value<[<@mesh, [{}, {\22b\22}]>]>"}}
        : (tensor<2x2xf32>) -> tensor<2x4xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.frontend_attributes = {
        xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{\22b\22}, {}]>]>"},
        mhlo.sharding = "{replicated}"} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %4 = stablehlo.custom_call @xla.sdy.FuncResultSharding(%3) {has_side_effect = true,
        mhlo.frontend_attributes = {
        xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{}, {}]>]>"}}
        : (tensor<2x4xf32>) -> tensor<2x4xf32>
    return %4 : tensor<2x4xf32>
  }
  func.func private @xla.sdy.manual_computation_body(%arg0: tensor<2x2xf32>) -> tensor<2x2xf32> {
    return %arg0 : tensor<2x2xf32>
  }
}
"""
IN = r"#sdy.sharding_per_value<[<@mesh, [{\22a\22}, {\22b\22}]>]>"
ARGUMENT = r"#sdy.sharding<@mesh, [{\22a\22}, {\22b\22}]>"
MESHES = r"{mesh = #sdy.mesh<[\22a\22=2, \22b\22=2]>}"


def check(program: str) -> None:
    check_program(mlir.parse(program.encode()), "cpu", 4)


def test_what_the_library_writes_is_accepted() -> None:
    check(MANUAL)


# At most of these XLA ends the process.
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (IN, "garbage", "Unable to parse attribute"),
        (IN, IN.replace("@mesh", "@mash"), "the mesh 'mash', which the program does not have"),
        (IN, r"#sdy.sharding_per_value<[<@mesh, [{\22a\22}]>]>", "a sharding of 1 dimensions"),
        (IN, r"#sdy.sharding_per_value<[]>", "0 shardings of 1 values"),
        (IN, IN.replace("b", "c"), "axes a, c, which the mesh 'mesh' does not have"),
        (IN, IN.replace("b", "a"), "each once"),
        (IN, ARGUMENT, "Cannot cast attribute"),
        ("xla.sdy.in_shardings", "xla.sdy.in_", "xla.sdy.in_ where it is not expected"),
        ("xla.sdy.in_shardings", "in_shardings", "without xla.sdy.in_shardings and"),
        (ARGUMENT, "garbage", "Unable to parse attribute"),
        (ARGUMENT, ARGUMENT.replace("@mesh", "@mush"), "the mesh 'mush'"),
        (ARGUMENT, r"#sdy.sharding<@mesh, [{}]>", "a sharding of 1 dimensions"),
        (MESHES, "garbage", "Unable to parse attribute"),
        (MESHES, "[1]", "xla.sdy.meshes is not a dictionary"),
        (MESHES, "{mesh = 1}", "Cannot cast attribute to MeshAttr"),
        (r"manual_axes{\22a\22, \22b\22}", r"manual_axes{\22c\22}", "that its meshes do not have"),
        ("call @xla.sdy.manual_computation_body", "call @other", "whose results go elsewhere"),
        (
            "call @xla.sdy.manual_computation_body(%0) :",
            'call @other(%0) {x = "xla.sdy.manual_computation_body"} :',
            "whose results go elsewhere",
        ),
        ("LocalToGlobalShape(%1)", "LocalToGlobalShape(%0)", "not used together"),
        (ARGUMENT, ARGUMENT.replace(r"\22a\22", r"\22a\22:(1)2"), "a part of an axis"),
        (MESHES, MESHES.replace(r"\22a\22", r"\22x\5C22y\22"), "has quotes, backslashes"),
        (MESHES, MESHES.replace("=2, ", "=4611686018427387904, "), "4611686018427387904 x 2"),
        (MESHES, MESHES.replace("{mesh", "{main = #sdy.mesh<[]>, mesh"), "name of a function"),
        (
            "xla.sdy.meshes =",
            'xla.sdy.tuple_args_shardings = "zzz", xla.sdy.meshes =',
            "tuple_args_shardings where it is not expected",
        ),
        ("return %4", "return %3", ""),
        ("GlobalToLocalShape(%arg0)", "PropagationBarrier(%arg0)", "where it is not expected"),
    ],
)
def test_what_it_would_not_write_is_refused(old: str, new: str, message: str) -> None:
    program = MANUAL.replace(old, new, 1) + OTHER
    assert program != MANUAL + OTHER
    program = program.replace("}\n" + OTHER, OTHER + "}\n")
    if not message:  # nothing hangs on it
        check(program)
        return
    with pytest.raises(StatusError, match=message) as raised:
        check(program)
    assert raised.value.code in {Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED}


#: As that library writes an ordered callback in a shard_map, without the call.
ORDERED = r"""
module @ordered attributes {
    mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22a\22=4]>}"},
    mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%t: !stablehlo.token, %x: tensor<8xf32>)
      -> (!stablehlo.token, tensor<8xf32>) {
    %0:2 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%t, %x) {has_side_effect = true,
        mhlo.frontend_attributes = {
        xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{\22a\22}]>]>",
        xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22}>"}}
        : (!stablehlo.token, tensor<8xf32>) -> (!stablehlo.token, tensor<2xf32>)
    %1:2 = call @xla.sdy.manual_computation_body(%0#0, %0#1)
        : (!stablehlo.token, tensor<2xf32>) -> (!stablehlo.token, tensor<2xf32>)
    %2:2 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%1#0, %1#1) {has_side_effect = true,
        mhlo.frontend_attributes = {
        xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22}>",
        xla.sdy.out_shardings = "#sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{\22a\22}]>]>"}}
        : (!stablehlo.token, tensor<2xf32>) -> (!stablehlo.token, tensor<8xf32>)
    return %2#0, %2#1 : !stablehlo.token, tensor<8xf32>
  }
  func.func private @xla.sdy.manual_computation_body(%t: !stablehlo.token, %x: tensor<2xf32>)
      -> (!stablehlo.token, tensor<2xf32>) {
    return %t, %x : !stablehlo.token, tensor<2xf32>
  }
}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("", "", ""),
        ("[<@mesh, []>", "[<@mesh, [{}]>", "a sharding of 1 dimensions for !stablehlo"),
        ("[<@mesh, []>", "[<@mash, []>", "the mesh 'mash'"),
        ("[<@mesh, []>", r"[<@mesh, [], unreduced={\22a\22}>", "axes a for !stablehlo.token"),
        ("[<@mesh, []>", r"[<@mesh, [], replicated={\22a\22}>", "axes a for !stablehlo.token"),
        (
            "%t: !stablehlo.token,",
            r"""%t: !stablehlo.token {mhlo.frontend_attributes = {
                xla.sdy.sharding = "#sdy.sharding<@mesh, [], unreduced={\22a\22}>"}},""",
            "axes a for !stablehlo.token",
        ),
        ("(%0#0, %0#1)", "(%t, %0#1)", "not used together"),
    ],
)
def test_tokens_pass_a_manual_computation_as_they_are(old: str, new: str, message: str) -> None:
    program = ORDERED.replace(old, new, 1)
    if not message:
        check(program)
        return
    assert program != ORDERED
    with pytest.raises(StatusError, match=message):
        check(program)


def test_a_manual_computation_makes_no_token_of_an_array() -> None:
    arrays = "(tensor<8xf32>, tensor<8xf32>) -> (!stablehlo.token, tensor<2xf32>)"
    program = ORDERED.replace("(%t, %x) {has", "(%x, %x) {has")
    program = program.replace(arrays.replace("tensor<8xf32>", "!stablehlo.token", 1), arrays)
    assert arrays in program
    with pytest.raises(StatusError, match="Cannot cast type"):
        check(program)


OTHER = """
  func.func private @other(%arg0: tensor<2x2xf32>) -> tensor<2x2xf32> {
    return %arg0 : tensor<2x2xf32>
  }
"""


def test_text_of_shardy_does_not_let_another_dialect_in() -> None:
    program = r"""
module @foreign attributes {
    mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22a\22=2]>}"}} {
  func.func public @main(%arg0: tensor<4xi32>) -> tensor<4xi32> {
    %0 = arith.addi %arg0, %arg0 {mhlo.frontend_attributes = {
        xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{}]>]>"}} : tensor<4xi32>
    return %0 : tensor<4xi32>
  }
}
"""
    with pytest.raises(StatusError, match=r"only, not arith\.addi"):
        check(program)


RULE = "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=4, j=4}, custom>"


@pytest.mark.parametrize("form", ["text", "attribute"])
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (RULE, ""),
        ("garbage", "Unable to parse attribute"),
        ("#sdy.op_sharding_rule<([i])->([i]) {i=4}, custom>", "values of other ranks"),
        ("#sdy.op_sharding_rule<([i, j], [i])->([i, j]) {i=4, j=4}, custom>", "number of them"),
        (
            "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=3, j=4}, custom>",
            "make 3 x 4, for tensor<4x4",
        ),
        (
            "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=0, j=4}, custom>",
            "make 0 x 4, for tensor<4x4",
        ),
        ("#sdy.op_sharding_rule<([ij, k])->([ij, k]) {i=2, j=4, k=4}, custom>", "make 8 x 4, for"),
        ("#sdy.op_sharding_rule<([ij, k])->([i, jk]) {i=2, j=2, k=4}, custom>", "make 2 x 8, for"),
        ("#sdy.op_sharding_rule<([ij, k])->([ij, k]) {i=2, j=2, k=4}, custom>", ""),
    ],
)
def test_a_rule_fits_its_call(form: str, rule: str, message: str) -> None:
    program = f"""
module @rule attributes {{mhlo.frontend_attributes = {{xla.sdy.meshes = "{{}}"}}}} {{
  func.func public @main(%arg0: tensor<4x4xf32>) -> tensor<4x4xf32> {{
    %0 = stablehlo.custom_call @MoveToHost(%arg0) {{
        mhlo.frontend_attributes = {{xla.sdy.sharding_rule = "{rule}"}}}}
        : (tensor<4x4xf32>) -> tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }}
}}
"""
    if form == "attribute":
        written = f'mhlo.frontend_attributes = {{xla.sdy.sharding_rule = "{rule}"}}'
        assert written in program
        program = program.replace(written, f"sdy.sharding_rule = {rule}")
    if not message:
        check(program)
        return
    # (Those of other values MLIR itself refuses, where they are attributes.)
    is_parsed = form == "text" or "make" in message
    with pytest.raises(StatusError if is_parsed else ir.MLIRError) as caught:
        check(program)
    assert not is_parsed or message in str(caught.value)


INLINE = '#sdy.sharding<mesh<["x" = SIZE, "a]" = 1]>, [{"x"}]>'
NAMED = '#sdy.sharding<@m, [{"x"}]>'
MESHES_OF = {
    "operation": ('sdy.mesh @m = <["x"=SIZE, "a]"=1]>', NAMED, ""),
    "unused": ('sdy.mesh @m = <["x"=SIZE, "y"=1]>', "", ""),
    "argument": ("", INLINE, ""),
    "value": ("", "", f"{{sdy.sharding = #sdy.sharding_per_value<[{INLINE[13:]}]>}}"),
}


@pytest.mark.parametrize("size", [4, 5, 1 << 62])
@pytest.mark.parametrize("where", MESHES_OF)
def test_a_mesh_has_no_more_devices_than_its_program(where: str, size: int) -> None:
    mesh, argument, value = MESHES_OF[where]
    argument = f"{{sdy.sharding = {argument}}}" if argument else ""
    program = f"""
module @meshes {{
  {mesh}
  func.func public @main(%arg0: tensor<4xf32> {argument}) -> tensor<4xf32> {{
    %0 = stablehlo.add %arg0, %arg0 {value} : tensor<4xf32>
    return %0 : tensor<4xf32>
  }}
}}
""".replace("SIZE", str(size))
    if size == 4:
        check(program)
        return
    with pytest.raises(StatusError, match=f"a mesh of {size} x 1 devices, in a program for 4"):
        check(program)


@pytest.mark.parametrize(("size", "is_accepted"), [(1 << 16, True), (1 << 17, False)])
def test_a_program_for_one_device_may_have_an_abstract_mesh(size: int, is_accepted: bool) -> None:
    text = MANUAL.replace(r"\22a\22=2, \22b\22=2", rf"\22a\22={size}, \22b\22=1")
    assert text != MANUAL
    module = mlir.parse(text.encode())
    if is_accepted:
        check_program(module, "cpu", 1)
        return
    with pytest.raises(StatusError, match=f"a mesh of {size} x 1 devices, in a program for 1"):
        check_program(module, "cpu", 1)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ('{xla.sdy.sharding = "garbage"}', "xla.sdy.sharding where it is not expected"),
        ('{xla.sdy.meshes = "garbage"}', "xla.sdy.meshes where it is not expected"),
        ("{xla.sdy.meshes = 1 : i32}", "xla.sdy.meshes is not a text"),
        ('"xla.sdy.meshes"', "mhlo.frontend_attributes is not a dictionary"),
        ('{a = "b"}', ""),
    ],
)
def test_a_function_has_no_text_of_shardy_itself(attributes: str, message: str) -> None:
    head = "-> (tensor<2x4xf32>) {"
    assert head in MANUAL
    added = f"{head[:-1]} attributes {{mhlo.frontend_attributes = {attributes}}} {{"
    program = MANUAL.replace(head, added)
    if not message:
        check(program)
        return
    with pytest.raises(StatusError, match=message):
        check(program)


def test_a_group_is_a_number() -> None:
    program = """
module @group attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{}"}} {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    stablehlo.custom_call @xla.sdy.ShardingGroup(%arg0) {has_side_effect = true,
        mhlo.frontend_attributes = {xla.sdy.sharding_group_id = "NUMBER"}} : (tensor<4xf32>) -> ()
    return %arg0 : tensor<4xf32>
  }
}
"""
    check(program.replace("NUMBER", "21 : i64"))
    with pytest.raises(StatusError, match="without a number"):
        check(program.replace("NUMBER", "many"))
