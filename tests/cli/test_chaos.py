"""`sps chaos` on a real service."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys

import pytest

from harness.deadlines import wait_until
from harness.processes import KIND, REPOSITORY
from harness.programs import DEADLINE_S, sps, sps_running
from shared_pathways_service.cli import main
from shared_pathways_service.protocol import supervisor_pb2 as pb
from tests.servers.supervisor.support import EmbeddedClient, embedded, expect_state

COMMAND = [sys.executable, "-m", "shared_pathways_service.cli", "chaos"]


def here(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    """Runs it in this process; returns exit code, output and errors."""
    try:
        with pytest.raises(SystemExit) as ended:
            main(["chaos", *words])
    finally:
        gc.collect()  # gRPC's poller thread ends with the last of its objects
    told = capsys.readouterr()
    return ended.value.code, told.out, told.err


def test_the_plan_of_a_seed_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--dry-run", "--seed=7", "--mtbf=1m", "--kinds=kill,hang", "--duration=1h")
    code, out, _ = here(capsys, *words, "--json")
    assert code == 0
    plan = json.loads(out)
    assert plan["seed"] == 7
    times = [moment["at_s"] for moment in plan["moments"]]
    assert times == sorted(times)
    assert 20 < len(times) < 120
    assert times[-1] <= 3600
    assert {moment["kind"] for moment in plan["moments"]} == {"kill", "hang"}
    assert here(capsys, *words, "--json")[1] == out
    lines = here(capsys, *words)[1].splitlines()
    assert lines[0] == "seed 7"
    assert len(lines) == 1 + len(times)
    assert lines[1].startswith(f"+{times[0]:.1f} s  ")
    some = here(capsys, "--dry-run")[1]
    assert len(some.splitlines()) == 21, "of those without end"


def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected, told in (
        ((), 3, "sps serve"),
        (("--context=kind-test",), 2, "embedded service of this machine, not a cluster"),
        (("--mtbf=often",), 2, "30s, 5m, 1h or 500ms"),
        (("--mtbf=0s",), 2, "--mtbf"),
        (("--down-for=-1s",), 2, "--down-for"),
        (("--down-for=61m",), 2, "at most 1h"),
        (("--kinds=maim",), 2, "kill, hang, proxy"),
        (("--slices-at-once=0",), 2, "--slices-at-once"),
        (("--duration=1d",), 2, "--duration"),
    ):
        code, out, err = here(capsys, *words)
        assert (code, out) == (expected, ""), err
        assert told in err
        assert err.count("\n") == 1


@pytest.mark.race
def test_slices_go_and_come_back() -> None:
    with embedded("--max_slice_restarts=0", slices=f"{KIND}=3") as (_, client):
        words = ("chaos", "--any", "--mtbf=400ms", "--down-for=300ms", "--seed=1", "--json")
        told = [json.loads(line) for line in sps(*words, "--duration=6s").stdout.splitlines()]
        *strikes, end = told
        assert end == {"seed": 1, "strikes": len(strikes), "passed_over": end["passed_over"]}
        assert strikes
        assert all(strike["kind"] == "kill" for strike in strikes)
        assert all(strike["tenant"] is None for strike in strikes)
        # No slice was given up, though not one restart of its own is allowed.
        client.wait_for_holders("", "", "")
        restarts = {w.slice: w.restarts for w in client.processes("worker")}
        struck = [strike["slice_id"] for strike in strikes if strike["processes"]]
        assert struck
        assert restarts == {f"slice-{n}": struck.count(f"slice-{n}") for n in range(3)}


@pytest.mark.race
def test_who_is_stopped_lets_go() -> None:
    with embedded() as (_, client):
        for number in (signal.SIGINT, signal.SIGTERM):
            _stopped(client, number)


def _stopped(client: EmbeddedClient, number: signal.Signals) -> None:
    with sps_running("chaos", "--any", "--mtbf=50ms", "--down-for=1h", "--yes") as process:
        assert process.stdout
        assert "disturbing the embedded service" in process.stdout.readline()
        assert "killed the workers of slice-0 for 3600 s (no holder)" in (process.stdout.readline())
        wait_until("it to be down", lambda: not client.holders())
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 128 + number
        assert out.startswith("1 disturbances, ")
        assert not err
        client.wait_for_holders("")


@pytest.mark.race
def test_tenants_lose_slices_and_proxies() -> None:
    with embedded(slices=f"{KIND}=2") as (_, client):
        client.create()
        watch = client.watch()
        expect_state(watch, pb.Proxy.SERVING)
        held = next(id_ for id_, who in client.wait_for_holders("isc-proxy-a", "").items() if who)
        with sps_running("chaos", "--mtbf=50ms", "--down-for=1h", "--json") as process:
            assert process.stdout
            strike = json.loads(process.stdout.readline())
            assert strike["slice_id"] == held
            assert (strike["tenant"], strike["virtual_index"]) == ("isc-proxy-a", 0)
            client.wait_for_holders("isc-proxy-a")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=DEADLINE_S)
        client.wait_for_holders("isc-proxy-a", "")
        with sps_running("chaos", "--mtbf=50ms", "--kinds=proxy") as process:
            assert process.stdout
            process.stdout.readline()
            assert "killed the proxy of isc-proxy-a" in process.stdout.readline()
            assert expect_state(watch, pb.Proxy.EXITED).reason.startswith("killed by SIGKILL")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=DEADLINE_S)
        client.wait_for_holders("", "")


@pytest.mark.race
def test_the_end_of_the_service_is_the_end() -> None:
    with (
        embedded() as (server, _),
        sps_running("chaos", "--mtbf=50ms", "--down-for=0s", "--any") as process,
    ):
        assert process.stdout
        process.stdout.readline()
        server.stop()
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 3
        assert err.count("\n") == 1


@pytest.mark.race
def test_who_sits_at_a_terminal_is_asked() -> None:
    with embedded() as (_, client):
        ours, theirs = os.openpty()
        with (
            os.fdopen(ours, "wb", buffering=0) as keyboard,
            os.fdopen(theirs, "rb") as terminal,
            subprocess.Popen(
                [*COMMAND, "--any", "--mtbf=1ms"],
                stdin=terminal,
                stderr=subprocess.PIPE,
                text=True,
                cwd=REPOSITORY,
            ) as asking,
        ):
            assert asking.stderr
            asked = ""
            while "Continue? [y/N]:" not in asked:
                asked += asking.stderr.read(1)
                assert asking.poll() is None, asked
            assert "it is not in use now" in asked
            keyboard.write(b"n\n")
            assert "nothing was disturbed" in asking.stderr.read()
            assert asking.wait(DEADLINE_S) == 1
        assert [w.restarts for w in client.processes("worker")] == [0]
