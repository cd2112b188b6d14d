"""Programs over four devices with shardings of Shardy: as JAX writes them, and others."""

from __future__ import annotations

import random

__all__ = ["DEVICES", "odd_sharded_program"]

DEVICES = 4
_AXES = ('"x"', '"x"', '"y"', '"z"', '"x":(1)2', '"x":(2)2', '"y":(1)1', '""', '"a]"')
_SIZES = (1, 2, 2, 2, 4, 4, 0, 3, 1 << 31, 1 << 62)
_MODULE = (
    "mhlo.num_partitions = {} : i32", "mhlo.num_replicas = {} : i32", "jax.x = {}",
    "mhlo.num_partitions = {}", 'mhlo.num_partitions = "{}"', "mhlo.spmd_output_sharding = {}",
    "mhlo.frontend_attributes = {{a = {}}}", 'mhlo.frontend_attributes = "{}"',
    'mhlo.frontend_attributes = {{xla.sdy.meshes = "{}"}}', "mhlo.is_dynamic = {}",
    'mhlo.frontend_attributes = {{xla.sdy.tuple_results_shardings = "{}"}}',
    'mhlo.frontend_attributes = {{xla.sdy.use_tuple_args = "{}"}}', "sdy.x = {}",
)  # fmt: skip
_ON_FUNCTION = (
    'mhlo.frontend_attributes = {xla.sdy.sharding = "x"}', "mhlo.frontend_attributes = {a = 1}",
    'mhlo.frontend_attributes = {xla.sdy.inlineable_manual_computation = ""}',
    'execution_thread = "other"', "mhlo.sharding = 1",
)  # fmt: skip
_LETTERS = "ijklm"


def _mesh(draw: random.Random) -> str:
    axes = draw.choice((['"x"'], ['"x"', '"y"'], ['"x"', '"y"', '"z"'], [], ['"a]"']))
    if draw.random() < 0.6:
        sizes = {1: [4], 2: [2, 2], 3: [2, 1, 2], 0: []}[len(axes)]
    else:
        sizes = [draw.choice(_SIZES) for _ in axes]
    written = ", ".join(f"{axis}={size}" for axis, size in zip(axes, sizes, strict=True))
    ids = ""
    if draw.random() < 0.3:
        fitting = ("3, 2, 1, 0",) if sizes else ("0", "3", "7", "-1")
        ids = draw.choice(fitting) if draw.random() < 0.8 else draw.choice(("0", "0, 0", "9"))
    return f"<[{written}]{f', device_ids=[{ids}]' if ids else ''}>"


def _sharding(draw: random.Random, rank: int) -> str:
    where = draw.choice(("@mesh", "@mesh", "@mesh", "@mesh", "@other", f"mesh{_mesh(draw)}"))
    axes = list(_AXES[:3]) if draw.random() < 0.6 else list(_AXES)
    draw.shuffle(axes)
    dimensions = []
    for _ in range(rank if draw.random() < 0.9 else draw.randrange(4)):
        taken = [axes.pop() for _ in range(draw.choice((0, 0, 1, 1, 2))) if axes]
        open_ = draw.choice((["?"], [], []))
        dimensions.append(f"{{{', '.join([*taken, *open_])}}}")
    more = ""
    if axes and draw.random() < 0.15:
        more = f", {draw.choice(('replicated', 'unreduced'))}={{{axes.pop()}}}"
    return f"<{where}, [{', '.join(dimensions)}]{more}>"


def _rule(draw: random.Random, operands: list[list[int]], results: list[list[int]]) -> str:
    """Returns a rule in which each dimension is a factor or two, of its size or another."""
    sizes: dict[str, int] = {}

    def mapping(shape: list[int]) -> str:
        free = list(_LETTERS)
        dimensions = []
        for size in shape:
            letters = [free.pop(0) for _ in range(draw.choice((1, 1, 1, 1, 2))) if free]
            for letter in letters:
                right = size if len(letters) == 1 else 2
                sizes.setdefault(letter, right if draw.random() < 0.9 else draw.choice(_SIZES))
            dimensions.append("".join(letters) or "{}")
        return f"[{', '.join(dimensions)}]"

    before, after = (", ".join(map(mapping, side)) for side in (operands, results))
    ordered = ", ".join(f"{letter}={size}" for letter, size in sorted(sizes.items()))
    kind = draw.choice(("", "", " reduction={i}", " need_replication={j}", " permutation={i}"))
    return f"#sdy.op_sharding_rule<({before})->({after}) {{{ordered}}}{kind}, custom>"


def _attribute(draw: random.Random, key: str, value: str) -> str:
    """Returns an attribute of Shardy, as such or as a text."""
    if draw.random() < 0.6:
        return f"sdy.{key} = {value}"
    written = value.replace("\\", "\\5C").replace('"', "\\22")
    return f'mhlo.frontend_attributes = {{xla.sdy.{key} = "{written}"}}'


def odd_sharded_program(draw: random.Random) -> str:
    """Returns a program for `DEVICES` devices, without arguments and with one result."""
    shape = draw.choice(([4, 4], [4, 4], [8, 2, 4], [4], [0, 4], []))
    array = f"tensor<{''.join(f'{size}x' for size in shape)}f32>"
    mesh = _mesh(draw)
    attributes = [
        draw.choice(_MODULE).format(draw.choice((0, 1, 4, -1, 99999999)))
        for _ in range(draw.choice((0, 0, 0, 1, 2)))
    ]
    written = mesh.replace('"', "\\22")
    texts = f'mhlo.frontend_attributes = {{xla.sdy.meshes = "{{mesh = #sdy.mesh{written}}}"}}'
    if draw.random() < 0.4:
        attributes = [one for one in attributes if "frontend" not in one] + [texts]
    names = {one.split(" ")[0]: one for one in attributes}
    lines = ["%a = stablehlo.constant dense<1.0> : " + array]
    of_value = f"#sdy.sharding_per_value<[{_sharding(draw, len(shape))}]>"
    add = f"{{{_attribute(draw, 'sharding', of_value)}}}" if draw.random() < 0.7 else ""
    lines.append(f"%b = stablehlo.add %a, %a {add} : {array}")
    if draw.random() < 0.4:
        constraint = f"{_sharding(draw, len(shape))} : {array}"
        lines.append(f"%c = sdy.sharding_constraint %b {constraint}")
    else:
        lines.append("%c = stablehlo.negate %b : " + array)
    rule = _attribute(draw, "sharding_rule", _rule(draw, [shape], [shape]))
    target = draw.choice(("MoveToHost", "annotate_device_placement", "LayoutConstraint"))
    call = f"%d = stablehlo.custom_call @{target}(%c) {{{rule}}} : ({array}) -> {array}"
    lines.append(call if draw.random() < 0.5 else f"%d = stablehlo.abs %c : {array}")
    if draw.random() < 0.3:
        shardings = f"[{_sharding(draw, len(shape))}]"
        axes = ", ".join(draw.sample(_AXES, draw.randrange(3)))
        lines.append(
            f"%e = sdy.manual_computation(%d) in_shardings={shardings} "
            f"out_shardings={shardings} manual_axes={{{axes}}} (%y: {array}) {{\n"
            f"sdy.return %y : {array} }} : ({array}) -> {array}"
        )
    else:
        lines.append("%e = stablehlo.abs %d : " + array)
    lines.append("return %e : " + array)
    result = f"#sdy.sharding{_sharding(draw, len(shape))}"
    placed = f" {{{_attribute(draw, 'sharding', result)}}}" if draw.random() < 0.5 else ""
    function = draw.choice(_ON_FUNCTION) if draw.random() < 0.2 else ""
    body = "\n    ".join(lines)
    return (
        f"module @sharded attributes {{{', '.join(names.values())}}} {{\n"
        f"  sdy.mesh @mesh = {mesh}\n  func.func public @main() -> ({array}{placed}) "
        f"{f'attributes {{{function}}} ' if function else ''}{{\n    {body}\n  }}\n}}"
    )
