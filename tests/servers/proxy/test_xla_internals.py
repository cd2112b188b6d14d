"""What the proxy uses of jaxlib's private parts: another release is named by what it lacks."""

from __future__ import annotations

import pytest

from shared_pathways_service.errors import VersionSkew
from shared_pathways_service.servers.proxy import xla_internals


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


def test_a_module_that_is_gone_lacks_all_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        (None, place, name, purpose)
        if place == "jaxlib.cpu._lapack"
        else (module, place, name, purpose)
        for module, place, name, purpose in xla_internals._PARTS
    ]
    monkeypatch.setattr(xla_internals, "_PARTS", tuple(parts))
    with pytest.raises(VersionSkew, match=r"jaxlib\.cpu\._lapack\.initialize"):
        xla_internals.check()
