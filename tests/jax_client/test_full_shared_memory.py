"""Connections that ended because a large array found no room in shared memory."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from shared_pathways_service.jax_client.plugin import transfer_files
from shared_pathways_service.jax_client.plugin.explaining import noting_the_end

ENDED = "UNAVAILABLE: Connection to IFRT proxy server was terminated: CANCELLED: Disconnected"


def notes(message: str) -> str:
    def fail() -> None:
        raise jax.errors.JaxRuntimeError(message)

    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        noting_the_end(fail)()
    return "\n".join(getattr(caught.value, "__notes__", ()))


@pytest.mark.parametrize(
    ("message", "free", "is_noted"),
    [(ENDED, 8 << 20, True), (ENDED, 1 << 30, False), ("RESOURCE_EXHAUSTED", 8 << 20, False)],
    ids=["full", "with room", "another error"],
)
def test_the_error_of_an_ended_connection_names_full_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, free: int, is_noted: bool
) -> None:
    says = SimpleNamespace(f_frsize=4096, f_bavail=free // 4096)
    monkeypatch.setattr(os, "statvfs", lambda _path: says)
    for name in transfer_files.SETTINGS:  # which are put back after the test
        monkeypatch.setenv(name, "")
    shared = transfer_files.share(tmp_path)
    try:
        noted = notes(message)
    finally:
        transfer_files.end()
    assert (f"The shared memory of {shared} is full" in noted) is is_noted
    assert ("SPS_SHARED_MEMORY_DIR=none" in noted) is is_noted


def test_without_shared_memory_nothing_is_said_of_it() -> None:
    assert "shared memory" not in notes(ENDED)
