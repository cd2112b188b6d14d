"""A machine that is suspended and resumed: all processes of a service stand still together.

They are stopped for longer than any of them waits for a sign of life of another, and meanwhile
their wall clock is set. (In a real suspend, `time.monotonic` stands still, and no time-out passes.)
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import shared_pathways_service
from harness.clock_steps import SteppedClock
from harness.deadlines import wait_until
from harness.embedded import DEADLINE_S, KIND, embedded, nothing_left
from harness.patience import patience
from harness.programs import program, sps, sps_json, status
from harness.signals import suspend
from shared_pathways_service.constants import TENANT_TTL_S
from shared_pathways_service.patience import timeouts
from shared_pathways_service.rmclient.channels import STREAM_CHANNEL
from shared_pathways_service.submission import Job
from tests.conftest import MARK

pytestmark = pytest.mark.race

#: Seconds without a heartbeat after which a worker counts as hung.
HUNG_S = 15.0
#: Longer than this, than a tenant may be without a stream, and than connections may be silent.
STOPPED_S = 1.0 + max(HUNG_S, TENANT_TTL_S, dict(STREAM_CHANNEL)["grpc.keepalive_time_ms"] / 1000)
HOUR_S = 3600.0
#: Another type, of a slice that no tenant wants.
OTHER_KIND = "tpuv5e:2x2"

#: Computes on a slice until it is told to stop, and then with a program that is new.
COMPUTING = """
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax, numpy as np
    values = np.arange(4096, dtype=np.float32)
    kept, x, steps = jax.device_put(values), jax.device_put(values), 0
    told = threading.Event()
    threading.Thread(target=lambda: (wait_for("stop"), told.set())).start()
    add = jax.jit(lambda a: a + 1)
    while not told.wait(0.05):
        x, steps = add(x), steps + 1
        if steps == 3:
            say("computes")
    # (`np.array_equal` would hide an error of JAX's.)
    assert (np.asarray(x) == values + steps).all()
    assert (np.asarray(jax.jit(lambda a: a * 3)(kept)) == values * 3).all()
    say("right", state=connection.status().state)
    wait_for("leave")
"""
#: Waits for a slice.
QUEUED = """
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}, queue_timeout=3600):
    say("placed")
    wait_for("leave")
"""
#: Notes each of its starts, and works until it is told to end.
WORKING = """
import pathlib, time
with open("starts", "a") as starts:
    print("start", file=starts)
while not pathlib.Path("end").exists():
    time.sleep(0.01)
"""
#: Needs a while to end after SIGTERM.
SAVING = """
import pathlib, signal, time
def save(*_):
    pathlib.Path("saving").touch()
    for _ in range(10):
        time.sleep(0.1)
    pathlib.Path("saved").touch()
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path("runs").touch()
while True:
    time.sleep(0.1)
"""


def running() -> list[int]:
    """All processes that the test has started, with all that those have started."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == os.environ[MARK]:
                # (The programs of jobs have other variables.)
                found |= {process, *process.children(recursive=True)}
    return [process.pid for process in found]


@contextlib.contextmanager
def suspended() -> Iterator[list[int]]:
    """Stops all of them, in any order, and continues those that are left in the list at the end."""
    stopped: list[int] = []
    try:
        # (The last ones may start others meanwhile.)
        while found := [pid for pid in running() if pid not in stopped]:
            random.shuffle(found)
            stopped += found
            # First all of them, at the same time, as the system does.
            for stop in (lambda pid: os.kill(pid, signal.SIGSTOP), suspend):
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        stop(pid)
        yield stopped
    finally:
        random.shuffle(stopped)
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def lasting(now: dict[str, Any]) -> dict[str, Any]:
    """What a suspend does not change: all but the waits that are shown, and spare proxies."""
    return {
        "processes": [one for one in now["processes"] if one["role"] != "standby"],
        "executors": [(one["slice"], one["pid"], one["state"]) for one in now["executors"]],
        "slices": [one for one in now["slices"] if one["instance_type"] == KIND],
        "tenants": now["tenants"],
        "queue": [(one["tenant"], one["position"]) for one in now["queue"]],
    }


def servers(now: dict[str, Any], idle: str) -> list[dict[str, Any]]:
    """The resource manager and the workers, without those of a slice."""
    roles = ("rm", "worker")
    return [one for one in now["processes"] if one["role"] in roles and one["slice"] != idle]


def submit(source: str, directory: Path) -> Job:
    return shared_pathways_service.submit([sys.executable, "-c", source], workdir=directory)


def states(now: dict[str, Any]) -> list[str]:
    return [one["state"] for one in now["slices"]]


def decisions() -> list[dict[str, Any]]:
    return [json.loads(line) for line in sps("events", "--json").stdout.splitlines()]


def moment(text: str | None) -> float:
    assert text is not None
    return datetime.datetime.fromisoformat(text).timestamp()


def test_nothing_is_lost_when_all_stand_still_and_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SteppedClock(tmp_path / "clock")
    for name, value in clock.variables.items():
        monkeypatch.setenv(name, value)
    slices = f"--slices={KIND}=2,{OTHER_KIND}=1"
    beats = ("--beat_interval_s=2", f"--hung_after_s={HUNG_S}")
    # (Not on executors: of them, a proxy expects the answer to a ping, which may be on its way.)
    with embedded(2, 0, slices, *beats), program(COMPUTING) as ada:
        ada.expect("computes")
        job = submit(WORKING, tmp_path)
        wait_until("the job to work", (tmp_path / "starts").exists)
        with program(QUEUED) as bob:
            wait_until("bob's place in the queue", lambda: len(status()["queue"]) == 1)
            last = submit("", tmp_path)
            wait_until("the last one's", lambda: len(status()["queue"]) == 2)
            [idle] = [one["id"] for one in status()["slices"] if one["instance_type"] != KIND]
            before, known, listed = lasting(status()), decisions(), sps_json("list")
            [dead] = [one["pid"] for one in before["processes"] if one["slice"] == idle]

            with contextlib.ExitStack() as stack:
                with suspended() as pids:
                    clock.step(HOUR_S)
                    time.sleep(STOPPED_S)
                    # This one stays as it is.
                    pids.remove(dead)
                    stack.callback(os.kill, dead, signal.SIGCONT)
                ada.tell("stop")
                assert ada.expect("right")["state"] == "serve"
                # The manager judges again who is silent, and it is the only one.
                wait_until("its loss", lambda: "lost" in states(status()))
                [lost] = decisions()[len(known) :]
                assert (lost["kind"], lost["slice"]) == ("slice.lost", idle)
                assert lasting(status()) == before
                assert sps_json("list") == listed

            clock.step(-HOUR_S)
            (tmp_path / "end").touch()
            ended = job.wait(DEADLINE_S)
            assert (ended.state, ended.attempt) == ("succeeded", 1)
            assert (tmp_path / "starts").read_text() == "start\n"
            # It saw the clock.
            assert moment(ended.ended) < moment(ended.started)
            bob.expect("placed")
            assert [one["tenant"] for one in status()["queue"]] == [last.name]
            bob.tell("leave")
            assert bob.wait() == 0
        ended = last.wait(DEADLINE_S)
        assert (ended.state, ended.attempt) == ("succeeded", 1)
        ada.tell("leave")
        assert ada.wait() == 0
        wait_until("all to leave", nothing_left)
        assert servers(status(), idle) == servers(before, idle)


def test_a_cancelled_job_has_its_time_to_end_after_a_suspend(tmp_path: Path) -> None:
    with patience(0.5), embedded(1):
        job = submit(SAVING, tmp_path)
        wait_until("the program", (tmp_path / "runs").exists)
        cancelling = threading.Thread(target=job.cancel)
        cancelling.start()
        wait_until("SIGTERM", (tmp_path / "saving").exists)
        with suspended():
            time.sleep(timeouts.JOB_GRACE.s + 0.5)
        cancelling.join(DEADLINE_S)
        assert job.status().state == "cancelled"
        assert (tmp_path / "saved").exists()
