"""`sps serve --install` writes a unit that systemd accepts, with the options and settings."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from harness.embedded import shut_down
from harness.processes import DEADLINE_S
from harness.programs import python, sps, sps_failing
from shared_pathways_service.cli.errors import INTERRUPTED, TERMINATED
from shared_pathways_service.cli.lookups import logouts
from shared_pathways_service.cli.lookups.logouts import logout_note
from shared_pathways_service.cli.user_unit import UNIT, unit_text
from tests.cli.user_manager import user_manager


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
    assert f"SuccessExitStatus={INTERRUPTED} {TERMINATED}\n" in text
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make control groups")
def test_a_users_systemd_runs_it(tmp_path: Path) -> None:
    with user_manager(tmp_path) as manager:
        command = [sys.executable, "-m", "shared_pathways_service.cli"]
        manager.run(*command, "serve", "--slices=tpuv6e:2x2=1", "--spares=0", "--install")
        assert (tmp_path / ".config" / "systemd" / "user" / UNIT).exists()
        manager.run("systemctl", "--user", "daemon-reload")
        manager.run("systemctl", "--user", "enable", "--now", UNIT)
        ready = [*command, "status", f"--wait={DEADLINE_S:.0f}", "--json"]
        [one] = json.loads(manager.run(*ready))["slices"]
        assert one["instance_type"] == "tpuv6e:2x2"

        # One that is killed is started again, and no process of the first is left.
        first = manager.value(UNIT, "MainPID")
        manager.run("systemctl", "--user", "kill", "--kill-who=main", "--signal=KILL", UNIT)
        wait_until("the next start", lambda: manager.value(UNIT, "NRestarts") == "1")
        manager.run(*ready)
        assert manager.value(UNIT, "MainPID") not in ("0", first)

        def workers() -> int:
            running = manager.run("ps", "-ewwo", "args=")
            return running.count("shared_pathways_service.servers.worker")

        wait_until("its worker", workers)
        assert workers() == 1

        manager.run("systemctl", "--user", "disable", "--now", UNIT)
        assert manager.value(UNIT, "ActiveState") == "inactive"
        assert manager.value(UNIT, "Result") == "success"
        assert "shared_pathways_service" not in manager.run("ps", "-ewwo", "args=")
        assert not manager.run("systemctl", "--user", "--failed", "--plain", "--no-legend")


def test_wrong_options_are_refused_before_anything_is_written(config: Path) -> None:
    code, said = sps_failing("serve", "--install", "--engine=none")
    assert code == 2
    assert "--engine" in said
    assert not (config / "systemd").exists()


SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
#: As systemd before 244 has it, too.
OLD_SESSION = "1:name=systemd:/user.slice/user-1000.slice/session-c2.scope\n0::/\n"
TERMINAL = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope\n"
#: Of cron and of a container.
ELSEWHERE = ("0::/system.slice/cron.service\n", "0::/\n", "")


@dataclasses.dataclass
class Logind:
    """What the system says of logouts. (Its daemon needs a system bus.)"""

    root: Path
    patch: pytest.MonkeyPatch

    def says(self, *, kills: bool, exclude: str = '1 "root"', only: str = "0") -> None:
        answer = f"b {str(kills).lower()}\nas {exclude}\nas {only}\n"
        busctl = self.root / "busctl"
        busctl.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}END\n")
        busctl.chmod(0o755)

    def linger(self) -> None:
        (self.root / "ada").touch()

    def note(self, group: str) -> str:
        self.patch.setattr(logouts, "_group_of", lambda _pid: group)
        return logout_note(os.getpid())


@pytest.fixture
def logind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Logind:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(logouts, "_LOGIND", tmp_path)
    monkeypatch.setattr(logouts, "_LINGERING", tmp_path)
    monkeypatch.setattr("pwd.getpwuid", lambda _user: type("Entry", (), {"pw_name": "ada"}))
    return Logind(tmp_path, monkeypatch)


@pytest.mark.parametrize("group", [SESSION, OLD_SESSION])
def test_lingering_alone_does_not_keep_what_logind_kills_with_the_session(
    logind: Logind, group: str
) -> None:
    logind.says(kills=True)
    note = logind.note(group)
    assert "lingering alone does not change that" in note
    assert "`sps serve --install`" in note
    assert "`systemd-run --user --scope sps serve`, after `loginctl enable-linger`" in note
    logind.linger()
    assert logind.note(group) == note.removesuffix(", after `loginctl enable-linger`")


@pytest.mark.parametrize(
    ("kills", "exclude", "only", "is_killed"),
    [
        (False, '1 "root"', "0", False),
        (True, '1 "root"', "0", True),
        (True, '2 "root" "ada"', "0", False),
        (True, "0", '1 "bob"', False),
        (False, "0", '2 "bob" "ada"', True),
        (True, '1 "ada"', '1 "ada"', False),
    ],
)
def test_the_lists_of_users_go_before_kill_user_processes(
    logind: Logind, *, kills: bool, exclude: str, only: str, is_killed: bool
) -> None:
    logind.says(kills=kills, exclude=exclude, only=only)
    assert bool(logind.note(SESSION)) is is_killed


@pytest.mark.parametrize("kills", [False, True])
def test_what_is_below_the_users_systemd_ends_with_the_last_session_unless_the_user_lingers(
    logind: Logind, *, kills: bool
) -> None:
    logind.says(kills=kills)
    note = logind.note(TERMINAL)
    assert "ends with your last session: `loginctl enable-linger` keeps both" in note
    logind.linger()
    assert not logind.note(TERMINAL)


def test_where_no_logout_ends_the_service_nothing_is_said(
    logind: Logind, monkeypatch: pytest.MonkeyPatch
) -> None:
    logind.says(kills=True)
    assert not any(map(logind.note, ELSEWHERE))
    # The daemon does not answer.
    (logind.root / "busctl").write_text("#!/bin/sh\nexit 1\n")
    assert not logind.note(SESSION)
    (logind.root / "busctl").unlink()
    monkeypatch.setenv("PATH", str(logind.root))
    assert not logind.note(SESSION)
    # No systemd.
    monkeypatch.setattr(logouts, "_LOGIND", logind.root / "nowhere")
    assert not logind.note(SESSION)
    assert not logind.note(TERMINAL)


#: `sps` in a terminal of a desktop.
IN_TERMINAL = f"""
import os, pathlib, sys
from shared_pathways_service.cli import main
from shared_pathways_service.cli.lookups import logouts
logouts._LOGIND = pathlib.Path("/")
logouts._LINGERING = pathlib.Path("/nowhere")
logouts._group_of = lambda _pid: {TERMINAL.replace("1000", str(os.getuid()))!r}
sys.exit(main())
"""


def test_submit_and_serve_say_what_a_logout_ends() -> None:
    words = ["submit", "--slices=tpuv6e:2x2=1", "--name=fit", "--", "true"]
    done = python("-c", IN_TERMINAL, *words)
    assert done.returncode == 0, done
    assert done.stdout == "fit\n"
    assert "sps: the service is below your own systemd" in done.stderr
    shut_down()
    with subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, "serve", "--slices=tpuv6e:2x2=1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as service:
        try:
            assert service.stderr is not None
            assert service.stdout is not None
            assert "the service is below your own systemd" in service.stderr.readline()
            # (From then on it ends in order.)
            assert any("service.started" in line for line in service.stdout)
        finally:
            service.terminate()
        assert service.wait(DEADLINE_S) == TERMINATED
