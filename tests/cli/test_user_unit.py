"""`sps serve --install` writes a unit that systemd accepts, with the options and settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import DEADLINE_S
from harness.programs import sps, sps_failing
from shared_pathways_service.cli.lookups import logouts
from shared_pathways_service.cli.lookups.logouts import logout_note
from shared_pathways_service.cli.user_unit import UNIT, unit_text


def test_options_and_settings_are_escaped_as_systemd_reads_them() -> None:
    environ = {
        "SPS_STATE_DIR": '/a "b"/100%/$HOME',
        "SPS_TOKEN_FILE": "/secret",
        "SPS_JOB_NAME": "fit",
        "HOME": "/root",
    }
    lines = unit_text(
        ["serve", "--slices", "tpuv6e:2x2=2", '--x=a "b" $c 5%'], environ
    ).splitlines()
    [start] = [line for line in lines if line.startswith("ExecStart=")]
    assert start == (
        f'ExecStart="{sys.executable}" "-m" "shared_pathways_service.cli" "serve" "--slices" '
        '"tpuv6e:2x2=2" "--x=a \\"b\\" $$c 5%%"'
    )
    environment = [line for line in lines if line.startswith("Environment=")]
    assert environment == ['Environment="SPS_STATE_DIR=/a \\"b\\"/100%%/$HOME"']


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_the_unit_is_written_and_not_run(config: Path) -> None:
    done = sps("serve", "--slices=tpuv6e:2x2=1", "--install", "--spares=0")
    path = config / "systemd" / "user" / UNIT
    assert done.stdout == f"wrote {path}\n"
    assert "systemctl --user enable --now" in done.stderr
    assert "loginctl enable-linger" in done.stderr
    text = path.read_text()
    assert '"serve" "--slices=tpuv6e:2x2=1" "--spares=0"\n' in text
    assert "--install" not in text.replace("`sps serve --install`", "")
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
            env={**os.environ, "XDG_RUNTIME_DIR": str(config)},
        )
        assert path.name not in checked.stderr, checked


def test_wrong_options_are_refused_before_anything_is_written(config: Path) -> None:
    code, said = sps_failing("serve", "--install", "--engine=none")
    assert code == 2
    assert "--engine" in said
    assert not (config / "systemd").exists()


@pytest.mark.parametrize(
    ("answer", "lingers", "user", "is_told"),
    [
        ("b true", False, 1000, True),
        ("b false", False, 1000, False),
        ("b true", True, 1000, False),
        ("b true", False, 0, False),
    ],
)
def test_a_system_that_ends_processes_at_a_logout_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answer: str,
    lingers: bool,
    user: int,
    is_told: bool,
) -> None:
    # (A program in the place of systemd's, which needs a system bus.)
    busctl = tmp_path / "busctl"
    busctl.write_text(f"#!/bin/sh\necho {answer}\n")
    busctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(logouts, "_LOGIND", tmp_path)
    monkeypatch.setattr(logouts, "_LINGERING", tmp_path)
    monkeypatch.setattr("os.getuid", lambda: user)
    monkeypatch.setattr("pwd.getpwuid", lambda _user: type("Entry", (), {"pw_name": "ada"}))
    if lingers:
        (tmp_path / "ada").touch()
    assert ("loginctl enable-linger" in logout_note()) is is_told
