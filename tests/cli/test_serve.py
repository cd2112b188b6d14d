"""`sps serve` as a person runs it, and how `sps` fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.processes import DEADLINE_S, KIND, REPOSITORY
from shared_pathways_service import errors
from shared_pathways_service.cli import COMMANDS
from shared_pathways_service.cli.display.serve_display import (
    Display,
    JsonLines,
    LiveTable,
    PlainLines,
    banner,
    holder_of,
    plain_line,
)
from shared_pathways_service.cli.errors import exit_code
from shared_pathways_service.events import Event
from tests.servers.supervisor.support import EmbeddedClient, assert_clean, runtime_paths

SPS = [sys.executable, "-m", "shared_pathways_service.cli"]
SMALL = ["--slices", f"{KIND}=1", "--spares", "0", "--standby-proxies", "0"]


def sps(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SPS, *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=DEADLINE_S,
        check=False,
    )


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs ``sps serve`` with a slice, up to the line that says it is ready."""
    with subprocess.Popen(
        [*SPS, "serve", *SMALL, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as process:
        try:
            wait_for_line(process, "slice.ready")
            yield process
        finally:
            process.kill()


def wait_for_line(process: subprocess.Popen[str], part: str) -> str:
    assert process.stdout
    for line in process.stdout:
        if part in line:
            return line
    raise AssertionError(f"ended before it said {part}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.race
def test_serves_in_lines_and_ends_cleanly_by_signal(number: signal.Signals, code: int) -> None:
    with serving() as process, EmbeddedClient() as client:
        client.create()
        line = wait_for_line(process, "slice.placed")
        assert "slice-0" in line
        assert "isc-proxy-a" in line
        everything = client.all_identities()
        process.send_signal(number)
        assert wait_for_line(process, "service.ending")
        assert process.wait(DEADLINE_S) == code
        assert not any(identity.is_alive() for identity in everything)
        assert_clean(runtime_paths())


@pytest.mark.race
def test_json_lines_are_events_and_a_second_signal_kills() -> None:
    with serving("--json") as process, EmbeddedClient() as client:
        # It would be waited for, and does not listen.
        [worker] = client.processes("worker")
        os.kill(worker.pid, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        event = json.loads(wait_for_line(process, "service.ending"))
        assert (event["kind"], event["reason"]) == ("service.ending", "SIGINT")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert_clean(runtime_paths())


def test_its_first_lines_say_how_to_see_it_in_the_browser() -> None:
    with (
        subprocess.Popen(
            [*SPS, "serve", *SMALL], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        ) as process,
    ):
        try:
            assert wait_for_line(process, "Page: ") == "Page: `sps ui` shows it in the browser\n"
            wait_for_line(process, "slice.ready")
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 130
        finally:
            process.kill()


def test_a_second_service_is_refused_naming_the_first() -> None:
    with serving() as process:
        refused = sps("serve", *SMALL)
        assert refused.returncode == errors_code("failed")
        assert refused.stderr.startswith("error: you already have a running service: process ")
        assert str(process.pid) in refused.stderr
        assert f"end it with Ctrl-C in its terminal or `kill {process.pid}`" in refused.stderr


def test_what_it_says_of_policies_is_what_the_resource_manager_goes_by() -> None:
    with serving("--max-slices-per-tenant", "1"):
        refused = sps("run", "--slices", f"{KIND}=2", "--", "true")
        assert "the limit of slices per tenant is 1 (2 wanted)" in refused.stderr


def test_a_waiting_tenant_is_pointed_to_a_suitable_spare() -> None:
    with serving("--spares", "1") as process, EmbeddedClient() as client:
        refused = sps("run", "--slices", f"{KIND}=2", "--", "true")
        assert f"1 x {KIND} would do, but the service keeps spares" in refused.stderr
        assert "`sps serve --spares 0`" in refused.stderr
        client.create()
        wait_for_line(process, "slice.placed")
        taken = sps("run", "--slices", f"{KIND}=1", "--", "true")
        assert " holds 1" in taken.stderr
        assert f"1 x {KIND} would do, but the service keeps spares" in taken.stderr


def test_without_spares_a_waiting_tenant_is_not_pointed_to_them() -> None:
    with serving() as process, EmbeddedClient() as client:
        client.create()
        wait_for_line(process, "slice.placed")
        taken = sps("run", "--slices", f"{KIND}=1", "--", "true")
        assert " holds 1" in taken.stderr
        assert "spare" not in taken.stderr


@pytest.mark.parametrize(
    ("slices", "spares", "says"),
    [
        ({"t:1": 3}, 1, "Starting 4 slices: 3 x t:1, and 1 as a spare"),
        (
            {"t:1": 3, "u:1": 1},
            1,
            "Starting 6 slices: 3 x t:1, 1 x u:1, and 1 of each type as a spare",
        ),
        ({"t:1": 3}, 0, "Starting 3 x t:1; no spares (--spares 0)"),
    ],
)
def test_the_banner_counts_spares(slices: dict[str, int], spares: int, says: str) -> None:
    text = banner(slices, spares)
    assert text.startswith(says)
    assert "--spares 0" in text


@pytest.mark.parametrize(
    ("display", "shows"), [(PlainLines(), True), (LiveTable(), True), (JsonLines(), False)]
)
def test_people_see_the_banner_and_programs_events_only(
    display: Display, shows: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def no_status() -> None:
        return None

    async def use() -> None:
        display.introduce("Starting 1 x t:1")
        async with display.following(no_status):
            pass

    asyncio.run(use())
    assert ("Starting 1 x t:1" in capsys.readouterr().out) == shows


def errors_code(word: str) -> int:
    return {"failed": 1, "usage": 2, "not ready": 3, "denied": 5}[word]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--slices", "tpuv6e:0x2=1"], "--slices"),
        (["--slices", "tpuv6e:2x2"], "--slices"),
        (["--hung-after", "-1"], "--hung-after"),
        (["--max-handles", str(1 << 63)], "--max-handles"),
        (["--hung-after", "1", "--beat-interval", "2"], "--hung-after"),
        (["--spares", "-1"], "--spares"),
        (["--preemption-grace", "-1"], "--preemption-grace"),
        (["--max-wait", "0"], "--max-wait"),
        (["--max-slices-per-team", "0"], "--max-slices-per-team"),
        (["--history-days", "none"], "--history-days"),
        (["--idle-release", "5", "--idle-warning", "5"], "--idle-warning"),
        (["--platform", "tpu"], "--platform"),
        (["--engine", "distributed", "--platform", "tpu"], "--platform"),
        (["--allow-colocated-python"], "--allow-colocated-python"),
        (
            ["--engine", "distributed", "--platform", "cuda", "--allow-colocated-python"],
            "--allow-colocated-python",
        ),
    ],
)
def test_wrong_options_are_named(arguments: list[str], field: str) -> None:
    refused = sps("serve", *arguments)
    assert refused.returncode == errors_code("usage")
    assert field in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_directory_open_to_others_is_access_denied() -> None:
    directory = runtime_paths().directory
    directory.mkdir(mode=0o755)
    refused = sps("serve", *SMALL)
    assert refused.returncode == errors_code("denied")
    assert f"hint: chmod 700 {directory}" in refused.stderr


def test_the_help_says_that_spares_come_on_top() -> None:
    words = " ".join(sps("serve", "--help").stdout.replace("│", " ").split())
    assert "Start these slices in addition to --spares" in words
    assert "Start so many spare slices of each type" in words


@pytest.mark.real_starts
def test_help_lists_the_commands_and_imports_none_of_them() -> None:
    source = (
        "import sys\n"
        "from shared_pathways_service.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "slow = {'jax', 'grpc', 'rich', 'asyncio', 'psutil', "
        "'shared_pathways_service.cli.commands.sessions.run'}\n"
        "assert not slow & sys.modules.keys(), slow & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command_begins_with_its_docstring(name: str) -> None:
    command = COMMANDS[name]
    assert (command.load().__doc__ or "").split("\n", maxsplit=1)[0] == command.help


def test_unknown_commands_and_the_version() -> None:
    assert sps("nonsense").returncode == errors_code("usage")
    assert sps("--version").stdout.startswith("sps ")


def test_every_error_has_an_exit_code() -> None:
    taken = errors.SlicesTaken("x")
    assert exit_code(taken) == exit_code(errors.PlacementTimeout("x")) == 4
    assert exit_code(errors.ServiceNotReady("x")) == exit_code(errors.ServiceNotFound("x")) == 3
    assert exit_code(errors.AccessDenied("x")) == 5
    assert exit_code(errors.InvalidRequestError("f", 1, "2")) == 2
    assert exit_code(errors.ProxyFailed("x")) == exit_code(errors.VersionSkew("x")) == 1


def test_an_unheld_slice_is_free_only_when_it_is_up() -> None:
    assert holder_of("ready", "isc-proxy-a", 1) == "isc-proxy-a[1]"
    assert holder_of("ready", None, None) == holder_of("ready", "", 0) == "free"
    assert holder_of("lost", None, None) == "-"


def test_what_the_system_refuses_is_an_error_that_names_the_file() -> None:
    logs = Path(os.environ["SPS_STATE_DIR"]) / "logs"
    logs.parent.mkdir(mode=0o700)
    logs.touch()
    refused = sps("serve", *SMALL)
    assert refused.returncode == errors_code("failed")
    assert refused.stderr.startswith("error: ")
    assert str(logs) in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_plain_line_names_the_slice_and_the_tenant() -> None:
    event = Event.of(
        "slice.unplaced",
        source="rm",
        time="2026-01-01T12:34:56.000Z",
        tenant="isc-proxy-a",
        slice="slice-0",
        reason="worker 0\nis gone",
        data={"virtual_index": 1, "slice_id": "slice-0", "generation": 7, "holders": ""},
    )
    assert plain_line(event) == (
        "12:34:56 slice.unplaced slice-0 isc-proxy-a generation=7 (worker 0 is gone)"
    )
