"""`sps` on the embedded service: logs, delete, reap, doctor."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded, journal, nothing_left
from harness.processes import REPOSITORY, ended_process
from harness.programs import DEADLINE_S, program, sps, sps_failing
from harness.signals import interrupt
from shared_pathways_service.agent.journal import DRAFT, Entry, Journal
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.jax_client.plugin.plugin import INSECURE_VARIABLE
from shared_pathways_service.runtime.embedded.log_reading import LogFile, read_logs
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings
from tests.cli.support import HOLDER, completed


def at_prompt(*words: str, answer: str | None) -> int:
    """Runs a command on a terminal, answers its question (None: Ctrl-C); returns its exit code."""
    command = [sys.executable, "-m", "shared_pathways_service.cli", *words]
    ours, theirs = os.openpty()
    with (
        os.fdopen(ours, "wb", buffering=0) as keyboard,
        os.fdopen(theirs, "rb") as terminal,
        subprocess.Popen(
            command, stdin=terminal, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
        ) as asking,
    ):
        assert asking.stderr
        asked = ""
        while "Delete it? [y/N]:" not in asked:
            asked += asking.stderr.read(1)
            assert asking.poll() is None, asked
        if answer is None:
            interrupt(asking)
        else:
            keyboard.write(f"{answer}\n".encode())
        return asking.wait(DEADLINE_S)


@pytest.mark.race
def test_logs_delete_and_reap() -> None:
    with embedded(2):
        with program(HOLDER) as running:
            name = running.expect("holds")["name"]
            assert "All placements done" in sps("logs", name).stdout
            assert "Pathways Slices Now Ready" in sps("logs", "--component=rm").stdout
            lines = sps("logs", "--component=worker", "--lines=1").stdout.splitlines()
            assert [line.partition(": ")[0] for line in lines] == ["slice-0-0", "slice-1-0"]
            # Of the slices that a connection holds.
            [line] = sps(
                "logs", name, "--component=worker", "--lines=1", "--json"
            ).stdout.splitlines()
            [held] = json.loads(sps("status", name, "--json").stdout)["slices"]
            assert json.loads(line)["source"] == f"{held['id']}-0"
            code, err = sps_failing("logs", name, "--component=executor")
            assert code == 3
            assert "its programs run in its proxy" in err
            code, err = sps_failing("logs", name, "--host=0")
            assert code == 2
            assert "--component=executor" in err
            assert sps_failing("logs")[0] == 2
            assert sps_failing("logs", "--component=executor")[0] == 2
            assert sps_failing("logs", "isc-proxy-nobody")[0] == 3

            code, err = sps_failing("delete", name)
            assert code == 2
            assert "--yes" in err
            code, err = sps_failing("delete", name, "--forget")
            assert code == 2
            assert "or its agent still runs" in err
            assert at_prompt("delete", name, answer="n") == 1
            assert at_prompt("delete", name, answer=None) == 130
            assert sps_failing("delete", "isc-proxy-nobody")[0] == 3
            command = [sys.executable, "-m", "shared_pathways_service.cli", "logs", "-f", name]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
            ) as tail:
                assert tail.stdout
                assert tail.stdout.readline()
                assert json.loads(sps("delete", name, "--yes", "--json").stdout)["deleted"]
                tail.communicate(timeout=DEADLINE_S)  # it ends with the proxy
            assert tail.returncode == 0
            running.tell("leave")
            assert "was deleted" in running.expect("deleted")["message"]
        assert nothing_left()
        # The log outlives its proxy.
        assert "All placements done" in sps("logs", name).stdout

        with program(HOLDER) as running:
            name = running.expect("holds")["name"]
            [entry] = journal()
            os.kill(entry.agent.pid, signal.SIGKILL)
            running.signal(signal.SIGKILL)
            wait_until("both to be dead", lambda: entry.abandoned)
            assert "would be deleted" in sps("reap", "--dry-run").stdout
            warned = json.loads(sps("doctor", "--json").stdout)
            [check] = [c for c in warned["checks"] if c["name"] == "journal"]
            assert (check["outcome"], name in check["found"]) == ("warning", True)
            assert sps("reap").stdout.startswith(f"deleted: {name}")
            # (Its writer was killed, or could not remove it either.)
            draft = Settings.load().state_dir / "journal" / f"of-no-session{DRAFT}"
            draft.touch()
            os.utime(draft, (0, 0))
            sps("reap", "--dry-run")
            assert draft.exists()
            assert sps("reap").stdout == "nothing was left behind\n"
            assert not draft.exists()
        wait_until("the slices to be free", nothing_left)


def test_what_cannot_be_reached_any_more_is_forgotten_on_request(own_directories: Path) -> None:
    gone = ended_process()
    home = HomeChoice(name="kubernetes", options={"namespace": "n", "context": "was-deleted"})
    entry = Entry(session="s", name="lost", home=home, owner=gone, agent=gone, since="")
    Journal(own_directories / "s" / "journal").write(entry)
    code, err = sps_failing("delete", "lost")
    assert code == 1
    assert "was-deleted" in err
    assert "sps delete NAME --forget" in err
    assert json.loads(sps("delete", "lost", "--forget", "--json").stdout) == {
        "name": "lost",
        "deleted": False,
        "forgotten": True,
    }
    assert journal() == []
    assert sps_failing("delete", "lost", "--forget")[0] == 2


def test_doctor() -> None:
    report = json.loads(sps("doctor", "--json").stdout)
    assert report["ok"]
    assert report["checks"][-1]["name"] == "service"
    assert "connect() starts one" in report["checks"][-1]["found"]
    with embedded(1):
        report = json.loads(sps("doctor", "--slices=tpuv6e:2x2=1", "--json").stdout)
        assert [(c["name"], c["outcome"]) for c in report["checks"][-5:]] == [
            ("service", "ok"),
            ("protocol", "ok"),
            ("instance types", "ok"),
            ("resource manager", "ok"),
            ("slices", "ok"),
        ]
        done = sps("doctor", "--slices=tpuv6e:2x2=2", check=False)
        assert done.returncode == 2
        assert "FAILED   instance types" in done.stdout
    directory = Settings.load().runtime_dir
    directory.chmod(0o755)
    done = sps("doctor", check=False)
    assert done.returncode == 5
    assert f"fix: chmod 700 {directory}" in done.stdout
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("value", "outcome", "found"),
    [
        (None, "ok", "is not set"),
        ("true", "ok", "plaintext"),
        ("false", "warning", "ALTS"),
        ("True", "warning", "ignores any value but 'true'"),
        ("", "warning", "ignores any value but 'true'"),
    ],
)
def test_doctor_looks_at_the_credentials_of_this_shell(
    value: str | None, outcome: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(INSECURE_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(INSECURE_VARIABLE, value)
    report = json.loads(sps("doctor", "--json").stdout)
    [check] = [check for check in report["checks"] if check["name"] == "credentials"]
    assert check["outcome"] == outcome
    assert INSECURE_VARIABLE in check["found"]
    assert found in check["found"]
    assert (check["fix"] is None) == (outcome == "ok")
    assert report["ok"]


def test_doctor_finds_a_proxy_only_in_a_cluster() -> None:
    code, err = sps_failing("doctor", "--proxy_job_name=isc-proxy-a")
    assert code == 2
    assert "--proxy-job-name='isc-proxy-a'" in err


def test_a_followed_file_is_read_to_its_writers_end(own_directories: Path) -> None:
    path = own_directories / "x.log"
    path.write_text("one\ntwo\n")
    script = "import sys; f = open(sys.argv[1], 'a'); sys.stdin.read(); f.write('three\\nfour')"
    shown: list[tuple[str, str]] = []
    with subprocess.Popen([sys.executable, "-c", script, path], stdin=subprocess.PIPE) as writer:
        log = LogFile(path=path, source="x", writer=identity_of(writer.pid))

        def show(source: str, line: str) -> None:
            shown.append((source, line))
            if line == "two":
                assert writer.stdin
                writer.stdin.close()
                # Nobody reaps it before: a process that has ended is not alive all the same.

        read_logs([log], 1, show, follow=True)
    assert shown == [("x", "two"), ("x", "three"), ("x", "four")]


def test_only_selected_lines_are_counted_and_shown(own_directories: Path) -> None:
    path = own_directories / "x.log"
    path.write_text("mine 1\nmine 2\nmine 3\n" + "other\n" * 10)
    shown: list[tuple[str, str]] = []
    script = "import sys; f = open(sys.argv[1], 'a'); sys.stdin.read(); f.write('other\\nmine 4')"
    with subprocess.Popen([sys.executable, "-c", script, path], stdin=subprocess.PIPE) as writer:
        log = LogFile(
            path=path,
            writer=identity_of(writer.pid),
            select=lambda line: ("me", line) if line.startswith("mine") else None,
        )

        def show(source: str, line: str) -> None:
            shown.append((source, line))
            if line == "mine 3":
                assert writer.stdin
                writer.stdin.close()

        read_logs([log], 2, show, follow=True)
    assert shown == [("me", "mine 2"), ("me", "mine 3"), ("me", "mine 4")]


def test_a_log_that_was_emptied_goes_on_from_its_beginning(own_directories: Path) -> None:
    path = own_directories / "x.log"
    path.write_text("long ago\n" * 10)
    shown: list[str] = []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as writer:

        def show(_: str, line: str) -> None:
            shown.append(line)
            if line == "long ago":
                os.truncate(path, 0)
                path.write_text("new\n")
                assert writer.stdin
                writer.stdin.close()

        read_logs([LogFile(path=path, writer=identity_of(writer.pid))], 1, show, follow=True)
    assert shown == ["long ago", "new"]


@pytest.mark.parametrize("command", ["logs", "delete", "reap", "doctor", "list", "status", "run"])
def test_every_command_takes_a_cluster_and_completes_it(command: str) -> None:
    assert completed(f"sps {command} --path") == ["--pathways-service"]


def test_connections_are_completed(own_directories: Path) -> None:
    journal = Journal(own_directories / "s" / "journal")
    me = identity_of()
    for number, name in enumerate(("isc-proxy-b", "isc-proxy-a", "mine")):
        home = HomeChoice(name="embedded")
        journal.write(
            Entry(session=f"s{number}", name=name, home=home, owner=me, agent=me, since="")
        )
    assert completed("sps logs isc") == ["isc-proxy-a", "isc-proxy-b"]
    assert completed("sps delete m") == ["mine"]
    assert completed("sps logs --component w") == ["worker"]
