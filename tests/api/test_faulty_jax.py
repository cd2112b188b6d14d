"""Releases of JAX that compute wrong numbers or crash on CPUs."""

from __future__ import annotations

import pytest

from shared_pathways_service.api.faulty_jax import FAULTY_RELEASES, fault_of, warning_of

FLAG = "--xla_cpu_experimental_ynn_fusion_type="


@pytest.mark.parametrize("version", ["0.9.2", "0.10.1", "0.11.2", "0.12.0.1", "0.11.0.1", ""])
def test_sound_releases(version: str) -> None:
    assert fault_of(version) is None
    assert warning_of(version, "") == ""


@pytest.mark.parametrize("version", FAULTY_RELEASES)
def test_a_warning_names_the_release_the_fault_and_what_to_install(version: str) -> None:
    fault = FAULTY_RELEASES[version]
    assert fault_of(version) == fault
    assert fault_of(fault.sound_release) is None
    warning = warning_of(version, "--xla_other=1")
    assert warning.startswith(f"jaxlib {version} {fault.effect}")
    assert f"Install jax=={fault.sound_release} or set XLA_FLAGS={FLAG} " in warning


@pytest.mark.parametrize(
    ("flags", "is_sound"),
    [(FLAG, True), (f"--xla_other=1 {FLAG}", True), (f"{FLAG}reduce", False)],
)
def test_a_flag_that_makes_the_release_sound_prevents_the_warning(
    flags: str, is_sound: bool
) -> None:
    assert (warning_of("0.10.2", flags) == "") is is_sound
