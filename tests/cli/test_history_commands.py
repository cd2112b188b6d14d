"""`sps top`, `events`, `explain` and `usage` on the embedded service."""

from __future__ import annotations

import asyncio
import csv
import json
import signal
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded, nothing_left
from harness.processes import run_async
from harness.programs import DEADLINE_S, program, sps, sps_failing, sps_json, sps_running, status
from harness.signals import interrupt
from shared_pathways_service.cli.display.moments import parse_moment
from shared_pathways_service.errors import InvalidRequestError, VersionSkew
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from tests.cli.support import HOLDER, completed

KIND = "tpuv6e:2x2"
WAITER = HOLDER.replace('": 1})', '": 1}, queue_timeout=600)')


def lines(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in sps(*words, "--json").stdout.splitlines()]


def test_every_command_reports_the_history(tmp_path: Path) -> None:
    with embedded(1):
        with program(HOLDER) as first:
            holder = first.expect("holds")["name"]
            with program(WAITER) as second, sps_running("events", "-f", "--json") as following:
                wait_until("one to wait", lambda: status()["queue"])
                [entry] = status()["queue"]
                waiter = entry["tenant"]
                look_while_one_waits(holder, waiter)
                first.tell("leave")
                first.expect("left")
                assert second.expect("holds")["name"] == waiter
                assert following.stdout
                heard: list[dict[str, Any]] = []
                while not heard or (heard[-1]["kind"], heard[-1].get("tenant")) != (
                    "slice.placed",
                    waiter,
                ):
                    heard.append(json.loads(following.stdout.readline()))
                interrupt(following)
                _, err = following.communicate(timeout=DEADLINE_S)
                assert (following.returncode, err) == (130, "")
                assert heard == lines("events")[: len(heard)]
                second.tell("leave")
                second.expect("left")
        wait_until("the slice to be free", nothing_left)
        look_when_all_are_gone(holder, waiter, tmp_path / "log")


def look_while_one_waits(holder: str, waiter: str) -> None:
    seen = sps_json("top", "--once")
    [found] = seen["slices"]
    assert (found["tenant"], found["state"]) == (holder, "ready")
    assert found["held_since"]
    [queued] = seen["queue"]
    assert (queued["tenant"], queued["position"], queued["wants"]) == (waiter, 1, {KIND: 1})
    assert queued["expected_wait_s"] is None
    [share] = seen["utilisation"]
    assert (share["slices"], share["held"]) == (1, 1)
    assert 0 < share["last_hour"] <= 1
    table = sps("top", "--once").stdout
    assert f"{holder}[0]" in table
    assert "1 of 1 held (100%)" in table
    with sps_running("top", "--json", "--interval=0.1") as again:
        assert again.stdout
        looks = [json.loads(again.stdout.readline()) for _ in range(2)]
        assert all(look["slices"][0]["tenant"] == holder for look in looks)
        again.send_signal(signal.SIGINT)
        _, err = again.communicate(timeout=DEADLINE_S)
        assert (again.returncode, err) == (130, "")

    why = sps_json("explain", waiter)
    assert (why["state"], why["position"], why["wants"]) == ("waiting", 1, {KIND: 1})
    assert [one["tenant"] for one in why["holders"]] == [holder]
    assert why["expected_wait_s"] is None
    text = sps("explain", waiter).stdout
    assert f"{waiter} waits for 1 x {KIND}" in text
    assert f"{holder} (" in text
    assert "How long it will wait is not known" in text
    assert "tenant.queued" in text
    assert f"{holder} is running with 1 of 1 slices" in sps("explain", holder).stdout

    [mine] = lines("events", f"--tenant={waiter}")
    assert (mine["kind"], mine["source"], mine["sequence"] > 0) == ("tenant.queued", "rm", True)
    for words in (("events",), ("events", "-f")):
        code, err = sps_failing(*words, "--kind=place")
        assert (code, "--kind='place'" in err, "slice.placed" in err) == (2, True, True), err
    code, err = sps_failing("usage", "--since=2500-01-01")
    assert (code, "2500-01-01T00:00:00" in err) == (2, True), err
    [placed] = lines("events", "--kind=placed", "--since=1h")
    assert (placed["tenant"], placed["data"]["instance_type"]) == (holder, KIND)
    assert lines("events", "--limit=1")[0]["kind"] == "rm.started"
    assert f"{holder} was placed on {placed['slice']} (its slice 0)" in sps("events").stdout


def look_when_all_are_gone(holder: str, waiter: str, log: Path) -> None:
    why = sps_json("explain", holder)
    assert why["state"] == "gone"
    assert f"{holder} was released" in why["sentences"][0]
    used = sps_json("usage", "--by=tenant", "--since=1d")
    rows = {row["tenant"]: row for row in used["rows"]}
    assert rows.keys() == {holder, waiter}
    assert all(row["slice_seconds"] > 0 and row["holdings"] == 1 for row in rows.values())
    assert rows[holder]["waits"] == 0
    assert (rows[waiter]["waits"], rows[waiter]["waiting_seconds"] > 0) == (1, True)
    [row] = csv.DictReader(sps("usage", "--by=type", "--csv").stdout.splitlines())
    assert row["type"] == KIND
    assert float(row["slice_seconds"]) == pytest.approx(
        sum(one["slice_seconds"] for one in rows.values()), abs=0.01
    )
    assert "SLICE-HOURS" in sps("usage").stdout
    again = sps_json("replay", f"--save={log}")
    assert (again["identical"], again["epochs"], again["decisions"] > 5) == (True, 1, True)
    assert sps("replay", str(log)).stdout.startswith("identical: ")
    log.write_text(log.read_text().replace('"slice.placed"', '"slice.claimed"', 1))
    done = sps("replay", str(log), check=False)
    assert done.returncode == 1
    assert "different at line" in done.stdout
    assert sps_failing("replay", str(log), "--save=other")[0] == 2
    log.write_text("no log")
    code, err = sps_failing("replay", str(log))
    assert (code, "line 1" in err) == (2, True)


def test_without_a_service_or_with_bad_words_it_says_so(own_directories: object) -> None:
    assert own_directories
    commands: tuple[tuple[str, ...], ...] = (
        ("top", "--once"),
        ("events",),
        ("explain", "ada"),
        ("usage",),
    )
    for words in commands:
        code, err = sps_failing(*words)
        assert (code, "starts one" in err) == (3, True), words
    wrong: tuple[tuple[str, ...], ...] = (
        ("usage", "--since=soon"),
        ("usage", "--json", "--csv"),
        ("usage", "--by=colour"),
        ("events", "-f", "--limit=1"),
        ("top", "--interval=0"),
    )
    for words in wrong:
        assert sps_failing(*words)[0] == 2, words


@pytest.mark.parametrize("command", ["top", "events", "explain", "usage", "replay"])
def test_each_takes_a_cluster_and_completes_it(command: str) -> None:
    assert completed(f"sps {command} --path") == ["--pathways-service"]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90", -90.0),
        ("90s", -90.0),
        ("1.5h", -5400.0),
        ("7d", -604_800.0),
        ("2w", -1_209_600.0),
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T00:01:00", 60.0),
        ("1970-01-01T01:01:00+01:00", 60.0),
        (None, 0.0),
    ],
)
def test_moments(text: str | None, moment: float) -> None:
    assert parse_moment("--since", text) == moment


@pytest.mark.parametrize(
    "text", ["yesterday", "0", "0s", "1970-01-01T00:00:00Z", "1969-12-31T23:59:59Z"]
)
def test_no_moment(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="--since"):
        parse_moment("--since", text)


def test_an_older_service_is_named_with_both_versions() -> None:
    async def ask() -> tuple[str, str, str]:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub: pb_grpc.ResourceManagerAsyncStub = pb_grpc.ResourceManagerStub(channel)
                manager = Manager(stub=stub, metadata=(), address="here", version="0.0.1")
                asked = manager.ask(stub.Explain, pb.ExplainRequest(tenant="ada"))
                await asyncio.wait_for(asked, DEADLINE_S)
        except VersionSkew as error:
            # (The error itself would keep gRPC's objects, and its thread with them.)
            return error.message, error.client, error.service
        finally:
            await server.stop(0)
        raise AssertionError("it answered")

    message, client, service = run_async(ask())
    assert service == "0.0.1"
    assert "here is 0.0.1" in message
    assert client in message
