"""What the proxy uses of jaxlib's private parts: another release is named by what it lacks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from shared_pathways_service.errors import VersionSkew
from shared_pathways_service.servers.xla import xla_internals


def test_this_release_has_all() -> None:
    xla_internals.check()


def test_a_release_without_some_parts_is_refused_naming_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(xla_internals._array, "ArrayImpl")
    monkeypatch.delattr(xla_internals._jax, "DeviceList")
    with pytest.raises(VersionSkew) as caught:
        xla_internals.check()
    assert "jaxlib._jax.DeviceList (the devices of a program)" in caught.value.message
    assert "jax._src.array.ArrayImpl (arrays made of pieces)" in caught.value.message
    assert caught.value.service.startswith("jaxlib ")


def test_the_classes_by_which_programs_are_checked_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(xla_internals._ir, "DictAttr")
    monkeypatch.delattr(xla_internals._sdy, "OpShardingRuleAttr")
    monkeypatch.delattr(xla_internals._stablehlo, "clamp")
    with pytest.raises(VersionSkew) as caught:
        xla_internals.check()
    assert "jaxlib.mlir.ir.DictAttr (checks of programs)" in caught.value.message
    assert "jaxlib.mlir.dialects.sdy.OpShardingRuleAttr" in caught.value.message
    assert "jaxlib.mlir.dialects.stablehlo.clamp" in caught.value.message


def test_every_class_that_the_checks_use_is_looked_for() -> None:
    """A class of `ir`, `sdy` or `stablehlo` that a module names is among the parts."""
    known = {(place.rpartition(".")[2], name) for _, place, name, _ in xla_internals._PARTS}
    used = set()
    for source in Path(xla_internals.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.add((node.value.id, node.attr))
    used = {(module, name) for module, name in used if module in {"ir", "sdy", "stablehlo"}}
    assert len(used) > 20
    assert used <= known


def test_invalid_utf8_is_distinguished_from_other_errors() -> None:
    with ir.Context():
        text = ir.Attribute.parse('"\\FF"')
        with pytest.raises((UnicodeDecodeError, RuntimeError)) as caught:
            _ = text.value
    assert xla_internals.is_not_utf8(caught.value)
    assert not xla_internals.is_not_utf8(RuntimeError("dictionary changed size"))


def test_all_parts_of_a_missing_module_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        (None, place, name, purpose)
        if place == "jaxlib.cpu._lapack"
        else (module, place, name, purpose)
        for module, place, name, purpose in xla_internals._PARTS
    ]
    monkeypatch.setattr(xla_internals, "_PARTS", tuple(parts))
    with pytest.raises(VersionSkew, match=r"jaxlib\.cpu\._lapack\.initialize"):
        xla_internals.check()
