"""`sps run` of programs that choose another platform, or none, after it has started them."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import pytest

from harness.embedded import embedded, eventually, nothing_left
from harness.foreign import environment_without_us
from shared_pathways_service.cli.display.run_summary import warning
from shared_pathways_service.jax_client.plugin import run_notes
from shared_pathways_service.jax_client.plugin.plugin import TRANSPORT
from tests.e2e.sps_run import run

PROGRAM = """
import os, sys
CHOOSE
import jax, jax.numpy as jnp
CONFIGURE
print(jax.default_backend(), float(jnp.arange(4.0).sum()), flush=True)
"""


def program(choose: str = "", configure: str = "") -> tuple[str, ...]:
    source = PROGRAM.replace("CHOOSE", choose).replace("CONFIGURE", configure)
    return "--slices=tpuv6e:2x2=1", "--", sys.executable, "-c", source


def test_a_program_that_runs_elsewhere_is_reported() -> None:
    by_setting = program(configure="jax.config.update('jax_platforms', 'cpu')")
    by_variable = program(choose="os.environ['JAX_PLATFORMS'] = 'cpu'")
    with embedded(1):
        for words in (by_setting, by_variable):
            code, out, err = run(*words)
            assert (code, out) == (0, "cpu 6.0\n"), err
            assert err.count("runs on this machine, not on the slices") == 1, err
            assert "did not use its slices: it ran on this machine (jax_platforms='cpu')" in err

        # JAX's own choice is what `sps run` has set.
        for words in (
            program(),
            program(configure="jax.config.update('jax_platforms', None)"),
            program(choose="os.environ['JAX_PLATFORMS'] = ''"),
        ):
            code, out, err = run(*words)
            assert (code, out) == (0, "proxy 6.0\n"), err
            assert "slices:" not in err, err

        code, out, err = run("--slices=tpuv6e:2x2=1", "echo", "ran")
        assert (code, out) == (0, "ran\n"), err
        assert "did not use its slices: none of its processes used JAX" in err
        eventually(nothing_left, "all proxies to be gone")


def test_a_python_without_the_plugin_fails_at_once(tmp_path: Path) -> None:
    python = environment_without_us(tmp_path / "venv")
    asks = "import jax; jax.devices()"
    with embedded(1):
        code, out, err = run(python, "-c", f"{asks}; print('found')")
        assert (code, out) == (0, "found\n"), err
        for option in ("-E", "-I"):
            code, _, err = run(python, option, "-c", asks)
            assert code == 1, err
            # (Only JAX from 0.12 on has a client of its own.)
            if jax.version.__version_info__ >= (0, 12):
                assert f"transport '{TRANSPORT}' not found" in err
            assert f"JAX misses the transport {TRANSPORT!r}" in err
            assert "install the package there" in err


def test_what_processes_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes"
    assert run_notes.read(notes) == run_notes.Usage()
    notes.touch()
    assert warning(notes, is_ours=True)
    assert not warning(notes, is_ours=False)  # others than the plug-in connect to Google's
    monkeypatch.setenv(run_notes.NOTES_VARIABLE, str(notes))
    monkeypatch.setenv(run_notes.PLATFORMS_VARIABLE, "proxy,cpu")
    for _ in range(2):
        run_notes.note_elsewhere("jax_platforms='cpu'")
    assert capsys.readouterr().err.count("jax_platforms='cpu'") == 1
    assert "jax_platforms='cpu'" in warning(notes, is_ours=False)
    run_notes.note_use()
    assert run_notes.read(notes) == run_notes.Usage(used=True, elsewhere=("jax_platforms='cpu'",))
    assert not warning(notes, is_ours=True)
    monkeypatch.delenv(run_notes.NOTES_VARIABLE)
    run_notes.note_elsewhere("jax_platforms='cuda'")
    assert not capsys.readouterr().err


class Delayed(str):
    """A record of a process that another one overtakes between its look and its writing."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        run_notes._add("used 1")
        return str.__eq__(self, other)


def test_processes_that_record_at_the_same_time_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.write_text("elsewhere 2 a\n")
    monkeypatch.setenv(run_notes.NOTES_VARIABLE, str(notes))
    assert run_notes._add(Delayed("elsewhere 3 b"))
    assert run_notes.read(notes) == run_notes.Usage(used=True, elsewhere=("a", "b"))
