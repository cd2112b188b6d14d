"""The time zone, or the machine's name, changes between two commands: all is still one's own."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.embedded import KIND, embedded, journal, nothing_left
from harness.machines import Machine, is_possible, machine
from harness.processes import DEADLINE_S, REPOSITORY
from harness.programs import program
from shared_pathways_service.runtime.embedded.job_files import JobFiles
from shared_pathways_service.runtime.settings import Settings

#: Each is another day than the other; written so that no table of zones is needed.
EAST, WEST = "EAST-14", "WEST+12"
HOLDS = f"""
with isc_pathways.connect(expected_tpu_instances={{"{KIND}": 1}}) as connection:
    import jax.numpy as jnp
    say("runs", name=connection.proxy_job_name)
    wait_for("go on")
    say("computed", value=float(jnp.arange(4.0).sum()))
"""
SLEEPS = "import pathlib, time; pathlib.Path('started').touch(); time.sleep(3600)"


def sps_with(words: tuple[str, ...], *, prefix: tuple[str, ...] = (), zone: str = "") -> str:
    """Runs `sps` to its end; returns what it prints."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "shared_pathways_service.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **({"TZ": zone} if zone else {})},
    )
    assert done.returncode == 0, done
    return done.stdout


def in_zone(zone: str, *words: str) -> Any:
    return json.loads(sps_with((*words, "--json"), zone=zone))


def state_of(name: str) -> str:
    found = JobFiles(Settings.load().state_dir).read(name)
    assert found is not None
    return str(found.state)


def test_another_time_zone_shows_the_same_and_takes_nothing_for_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = datetime.datetime.now(datetime.UTC)
    monkeypatch.setenv("TZ", EAST)
    with embedded(2), program(HOLDS) as holding:
        name = holding.expect("runs")["name"]
        here = tmp_path / "work"
        here.mkdir()
        submit = ("submit", "--name=fit", f"--workdir={here}", "--", sys.executable, "-c", SLEEPS)
        sps_with(submit, zone=EAST)
        wait_until("the job's start", (here / "started").exists)
        placed = datetime.datetime.now(datetime.UTC)

        shown = [
            sorted((item["name"], item["since"]) for item in in_zone(zone, "list"))
            for zone in (EAST, WEST, "UTC0")
        ]
        assert shown[0] == shown[1] == shown[2]
        assert {item[0] for item in shown[0]} >= {name, "fit"}
        for zone in (EAST, WEST):
            for since in ("1h", began.isoformat(), began.strftime("%Y-%m-%dT%H:%M:%S")):
                assert name in sps_with(("events", f"--since={since}"), zone=zone), (zone, since)
            since = f"--since={placed.isoformat()}"
            assert "tenant.running" not in sps_with(("events", since, "--json"), zone=zone)
            assert sps_with(("reap",), zone=zone) == "nothing was left behind\n"
        assert [entry.name for entry in journal() if entry.name == name] == [name]
        assert state_of("fit") == "running"
        sps_with(("cancel", "fit"), zone=WEST)
        assert state_of("fit") == "cancelled"
        holding.tell("go on")
        assert holding.expect("computed")["value"] == 6.0
        assert holding.wait() == 0
        wait_until("all to be gone", nothing_left)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Machine]:
    with machine("here", tmp_path) as running:
        yield running


@pytest.mark.skipif(not is_possible(), reason="this user may not make namespaces")
def test_a_machine_of_another_name_has_its_session_and_job_as_before(
    here: Machine, tmp_path: Path
) -> None:
    prefix = tuple(here.prefix())
    submit = ("submit", "--name=fit", f"--workdir={tmp_path}", "--", sys.executable, "-c", SLEEPS)
    # (The service has the slices of its first request.)
    sps_with(("run", f"--slices={KIND}=3", "--", "true"), prefix=prefix)
    sps_with(submit, prefix=prefix)
    wait_until("the job's start", (tmp_path / "started").exists)
    with program(HOLDS, prefix=here.prefix()) as holding:
        name = holding.expect("runs")["name"]
        here.rename("renamed")
        listed = json.loads(sps_with(("list", "--json"), prefix=prefix))
        assert {item["name"] for item in listed} >= {name, "fit"}
        assert {item["state"] for item in listed if item["name"] == name} == {"serve"}
        assert "fit" in sps_with(("status",), prefix=prefix)
        assert sps_with(("reap",), prefix=prefix) == "nothing was left behind\n"
        # It finds the service that was started under the former name.
        ran = sps_with(
            ("run", f"--slices={KIND}=1", "--queue-timeout=600", "--", "echo", "ran"),
            prefix=prefix,
        )
        assert ran == "ran\n"
        assert state_of("fit") == "running"
        sps_with(("cancel", "fit"), prefix=prefix)
        assert state_of("fit") == "cancelled"
        holding.tell("go on")
        assert holding.expect("computed")["value"] == 6.0
        assert holding.wait() == 0
    assert journal() == []
