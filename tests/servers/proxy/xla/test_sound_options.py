"""Options of compilations on releases of jaxlib that are faulty without a flag."""

from __future__ import annotations

import importlib.util

import jaxlib.version
import pytest
from jaxlib import xla_client

from shared_pathways_service.api.faulty_jax import FAULTY_RELEASES, SOUND_FLAG
from shared_pathways_service.servers.xla import xla

SOUND_RELEASES = {"0.8.0", *(fault.sound_release for fault in FAULTY_RELEASES.values())}


def overrides_on(release: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Returns what a client overrides if its module is imported with a release of jaxlib."""
    monkeypatch.setattr(jaxlib.version, "__version__", release)
    spec = importlib.util.spec_from_file_location("xla_of_a_release", xla.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # (XLA accepts functions of LAPACK only once.)
    monkeypatch.setattr(module, "warm_up", xla.warm_up)
    options = xla_client.CompileOptions().SerializeAsString()
    return list(module.XlaClient([0]).options(options, [0]).env_option_overrides)


@pytest.mark.parametrize("release", FAULTY_RELEASES)
def test_a_faulty_release_compiles_with_the_flag(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SOUND_FLAG in overrides_on(release, monkeypatch)


@pytest.mark.parametrize("release", sorted(SOUND_RELEASES))
def test_a_sound_release_compiles_without_it(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name, _ in overrides_on(release, monkeypatch)]
    assert SOUND_FLAG[0] not in names
