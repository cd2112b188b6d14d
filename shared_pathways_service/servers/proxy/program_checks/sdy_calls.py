"""Checks Shardy's shardings that a client has written as text, before XLA reads them.

Clients before JAX 0.10.2 cannot send operations and attributes of Shardy's dialect. Their library
writes them as custom calls named ``xla.sdy.…`` and as strings in ``mhlo.frontend_attributes``,
which XLA reads back before it compiles. XLA assumes that the library wrote them: a string that is
not an attribute, an unknown mesh or axis, or a call in another place crashes it. So all that the
library would not have written is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shared_pathways_service.servers.proxy.program_checks.sdy_attributes import (
    problem_of_mesh,
    problem_of_rule,
)
from shared_pathways_service.servers.xla.operation_attributes import (
    FRONTEND,
    TARGET,
    TOKEN_TYPE,
)

__all__ = ["SDY_CALLS", "check_sdy", "is_written"]

_PREFIX = "xla.sdy."
_SHARDING, _IN, _OUT = (
    f"{_PREFIX}{name}" for name in ("sharding", "in_shardings", "out_shardings")
)
_AXES, _GROUP, _MESHES = (f"{_PREFIX}{n}" for n in ("manual_axes", "sharding_group_id", "meshes"))
_RULE = f"{_PREFIX}sharding_rule"
_TO_LOCAL, _TO_GLOBAL = f"{_PREFIX}GlobalToLocalShape", f"{_PREFIX}LocalToGlobalShape"
#: The functions that the two calls have between them.
_BODY = f"{_PREFIX}manual_computation_body"
_QUOTED = re.compile(r'"([^"]*)"')
#: Printed as it is: ASCII without quotes and backslashes. (That of pmap is `<axis 0x7f…>`.)
_PLAIN_NAME = re.compile(r"[ !#-\[\]-~]+")
#: The suffix of an axis's name for a part of it, which JAX never writes.
_SUB_AXIS = '":('

#: The axes of each mesh; None for one device, with unsharded values.
_Meshes = Mapping[str, Sequence[str] | None]


def is_written(operation: Any) -> bool:
    """Whether an operation has text of Shardy's, for `check_sdy`."""
    attributes = operation.attributes
    if _has_text(attributes):
        return True
    if operation.name != "func.func":
        return False
    lists = [attributes[name] for name in ("arg_attrs", "res_attrs") if name in attributes]
    return any(_has_text(entry) for one in lists for entry in one)


def _has_text(attributes: Any) -> bool:
    return FRONTEND in attributes and _PREFIX in str(attributes[FRONTEND])


def check_sdy(module: Any, operations: Iterable[Any], num_devices: int) -> str:
    """Returns what is wrong with Shardy's texts in a program; empty if they are right.

    `operations` are those that `is_written` selects, and the calls of `SDY_CALLS`.
    """
    try:
        texts = _texts(module.operation.attributes)
        _check_names(texts, {_MESHES})
        meshes = _meshes(texts.get(_MESHES, "{}"), num_devices)
        functions = [op.operation.attributes for op in module.body.operations]
        symbols = {entry["sym_name"].value for entry in functions if "sym_name" in entry}
        if taken := symbols & meshes.keys():
            raise _Wrong(f"the mesh {min(taken)!r} has the name of a function")
        for operation in operations:
            if operation.name == "func.func":
                _check_function(operation, meshes)
            elif operation.name != "builtin.module":
                _check_operation(operation, meshes)
    except (_Wrong, ir.MLIRError, ValueError, TypeError) as error:
        return str(error).split("\n", 1)[0][:300]
    return ""


class _Wrong(Exception):  # noqa: N818
    """The problem."""


def _meshes(text: str, num_devices: int) -> _Meshes:
    written = ir.Attribute.parse(text)
    if not isinstance(written, ir.DictAttr):
        raise _Wrong(f"{_MESHES} is not a dictionary")
    return {entry.name: _axes(sdy.MeshAttr(entry.attr), num_devices) for entry in written}


def _axes(mesh: Any, num_devices: int) -> Sequence[str] | None:
    found = [sdy.MeshAxisAttr(axis) for axis in mesh.axes]
    axes = [axis.name for axis in found]
    if not all(map(_PLAIN_NAME.fullmatch, axes)):
        # (Elsewhere names are compared as they are printed.)
        raise _Wrong("a mesh with an axis whose name has quotes, backslashes or other than ASCII")
    if problem := problem_of_mesh([axis.size for axis in found], num_devices):
        raise _Wrong(problem)
    return axes if axes or len(list(mesh.device_ids)) != 1 else None


def _check_function(function: Any, meshes: _Meshes) -> None:
    """Checks the shardings of a function's arguments and results: one for each."""
    _check_names(_texts(function.attributes), set())
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    for name, types in (("arg_attrs", kind.inputs), ("res_attrs", kind.results)):
        if name not in function.attributes:
            continue
        for entry, one in zip(function.attributes[name], types, strict=True):
            texts = _texts(entry)
            _check_names(texts, {_SHARDING})
            if _SHARDING in texts:
                _check_sharding(ir.Attribute.parse(texts[_SHARDING]), one, meshes)


def _check_operation(operation: Any, meshes: _Meshes) -> None:
    call = _target(operation)
    texts = _texts(operation.attributes)
    if rule := SDY_CALLS.get(call):
        rule(operation, texts, meshes)
        return
    _check_names(texts, {_SHARDING, _RULE})
    if _SHARDING in texts:
        _check_shardings(texts[_SHARDING], operation.results, meshes)
    if _RULE in texts:
        parsed = sdy.OpShardingRuleAttr(ir.Attribute.parse(texts[_RULE]))
        if problem := problem_of_rule(parsed, operation):
            raise _Wrong(problem)


def _to_local(call: Any, texts: Mapping[str, str], meshes: _Meshes) -> None:
    _check_manual(call, texts, _IN, call.operands, meshes)
    body = _only_user(call.results)
    if body.name != "func.call" or not body.attributes["callee"].value.startswith(_BODY):
        raise _Wrong(f"{_TO_LOCAL} whose results go elsewhere than to {_BODY}")
    if list(body.operands) != list(call.results):
        raise _Wrong(f"{_BODY} called with other arguments than {_TO_LOCAL} makes")
    if len(body.results) > 0:
        back = _only_user(body.results)
        if _target(back) != _TO_GLOBAL:
            raise _Wrong(f"{_BODY} whose results go elsewhere than to {_TO_GLOBAL}")


def _to_global(call: Any, texts: Mapping[str, str], meshes: _Meshes) -> None:
    _check_manual(call, texts, _OUT, call.results, meshes)
    made_by: Any = call.operands[0].owner
    if not isinstance(made_by, ir.Operation | ir.OpView):
        raise _Wrong(f"{_TO_GLOBAL} of an argument")
    body = made_by.operation
    if body.name != "func.call" or list(call.operands) != list(body.results):
        raise _Wrong(f"{_TO_GLOBAL} of other values than all that {_BODY} returns")
    if not body.attributes["callee"].value.startswith(_BODY):
        raise _Wrong(f"{_TO_GLOBAL} of what is not from {_BODY}")


def _check_manual(
    call: Any, texts: Mapping[str, str], name: str, values: Sequence[Any], meshes: _Meshes
) -> None:
    _check_names(texts, {name, _AXES})
    if name not in texts or _AXES not in texts:
        raise _Wrong(f"{_target(call)} without {name} and {_AXES}")
    if len(call.operands) != len(call.results) or len(call.operands) == 0:
        raise _Wrong(f"{_target(call)} of {len(call.operands)} to {len(call.results)} values")
    for before, after in zip(call.operands, call.results, strict=True):
        if str(before.type) == str(after.type) == TOKEN_TYPE:  # of ordered callbacks, in JAX 0.9
            continue
        one, other = ir.RankedTensorType(before.type), ir.RankedTensorType(after.type)
        if one.rank != other.rank or one.element_type != other.element_type:
            raise _Wrong(f"{_target(call)} of {one} to {other}")
    shardings = _check_shardings(texts[name], values, meshes)
    axes = set(_QUOTED.findall(str(sdy.ManualAxesAttr(ir.Attribute.parse(texts[_AXES])))))
    used = {_mesh_of(sharding) for sharding in shardings}
    if any(not axes <= set(meshes[mesh] or ()) for mesh in used):
        raise _Wrong(f"{_AXES} that its meshes do not have")


def _result_sharding(call: Any, texts: Mapping[str, str], meshes: _Meshes) -> None:
    _check_names(texts, {_SHARDING})
    if _SHARDING not in texts or [v.type for v in call.operands] != [v.type for v in call.results]:
        raise _Wrong(f"{_target(call)} that is no sharding of one value")
    if len(call.results) != 1 or any(
        use.owner.name != "func.return" for use in call.results[0].uses
    ):
        raise _Wrong(f"{_target(call)} of what is not returned")
    _check_shardings(texts[_SHARDING], call.results, meshes)


def _group(call: Any, texts: Mapping[str, str], _: _Meshes) -> None:
    _check_names(texts, {_GROUP})
    if not re.fullmatch(r"\d{1,9}( : i64)?", texts.get(_GROUP, "")):
        raise _Wrong(f"{_target(call)} without a number for {_GROUP}")
    if len(call.operands) != 1 or len(call.results) != 0:
        raise _Wrong(f"{_target(call)} of other than one value")


#: The custom calls of Shardy that a client's library writes, with their checks.
SDY_CALLS: dict[str, Callable[[Any, Mapping[str, str], _Meshes], None]] = {
    _TO_LOCAL: _to_local,
    _TO_GLOBAL: _to_global,
    f"{_PREFIX}FuncResultSharding": _result_sharding,
    f"{_PREFIX}ShardingGroup": _group,
}


def _check_shardings(text: str, values: Sequence[Any], meshes: _Meshes) -> list[Any]:
    shardings = list(sdy.TensorShardingPerValueAttr(ir.Attribute.parse(text)).shardings)
    if not values and len(shardings) == 1:
        # JAX writes this where a callback without results is called.
        _check_sharding(shardings[0], None, meshes)
        return shardings
    if len(shardings) != len(values):
        raise _Wrong(f"{len(shardings)} shardings of {len(values)} values")
    for sharding, value in zip(shardings, values, strict=True):
        _check_sharding(sharding, value.type, meshes)
    return shardings


def _check_sharding(attribute: Any, of: Any, meshes: _Meshes) -> None:
    sharding = sdy.TensorShardingAttr(attribute)
    mesh = _mesh_of(sharding)
    if mesh not in meshes:
        raise _Wrong(f"a sharding over the mesh {mesh!r}, which the program does not have")
    if isinstance(of, ir.RankedTensorType) or str(of) == TOKEN_TYPE:
        dimensions = list(sharding.dimension_shardings)
        rank = 0 if str(of) == TOKEN_TYPE else of.rank
        if len(dimensions) != rank and (dimensions or meshes[mesh] is not None):
            raise _Wrong(f"a sharding of {len(dimensions)} dimensions for {of}")
    if _SUB_AXIS in str(attribute):
        raise _Wrong("a sharding over a part of an axis")
    named = _QUOTED.findall(str(attribute))
    if named and not isinstance(of, ir.RankedTensorType):
        raise _Wrong(f"axes {', '.join(named)} for {of or 'no value'}, which has no dimensions")
    if not set(named) <= set(meshes[mesh] or ()) or len(set(named)) != len(named):
        raise _Wrong(f"axes {', '.join(named)}, which the mesh {mesh!r} does not have, each once")


def _mesh_of(attribute: Any) -> str:
    reference = str(sdy.TensorShardingAttr(attribute).mesh_or_ref)
    return reference.removeprefix("@").strip('"')


def _only_user(values: Sequence[Any]) -> Any:
    owners = [use.owner.operation for value in values for use in value.uses]
    if len(owners) != len(values) or any(owner != owners[0] for owner in owners):
        raise _Wrong("values of a manual computation that are not used together, each once")
    return owners[0]


def _target(operation: Any) -> str:
    return str(operation.attributes[TARGET].value) if TARGET in operation.attributes else ""


def _check_names(texts: Mapping[str, str], known: set[str]) -> None:
    if unknown := texts.keys() - known:
        raise _Wrong(f"{', '.join(sorted(unknown))} where it is not expected")


def _texts(attributes: Any) -> dict[str, str]:
    """Returns Shardy's texts of an operation's frontend attributes."""
    if FRONTEND not in attributes:
        return {}
    written = attributes[FRONTEND]
    if not isinstance(written, ir.DictAttr):
        raise _Wrong(f"{FRONTEND} is not a dictionary")
    texts = {}
    for entry in written:
        if entry.name.startswith(_PREFIX):
            if not isinstance(entry.attr, ir.StringAttr):
                raise _Wrong(f"{entry.name} is not a text")
            texts[entry.name] = entry.attr.value
    return texts
