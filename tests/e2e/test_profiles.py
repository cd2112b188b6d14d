"""Profiles of connected programs, opened by XProf: planes, names, and events in their order."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from harness.embedded import embedded
from harness.programs import DEADLINE_S, program, service, sps, sps_running, status
from shared_pathways_service.protocol import xplane_pb2

pytestmark = pytest.mark.race

#: The names of XLA's and this project's events.
UPLOAD, FETCH = "make_arrays_from_host_buffer_shards", "copy_to_host_buffer"

DIGITS = """
import jax
sys.path.insert(0, "examples")
import train_digits
train, train_digits.EPOCHS = train_digits.train, 1

def traced():
    with jax.profiler.trace(os.environ["DIRECTORY"]):
        train()

train_digits.train = traced
train_digits.main()
say("done")
"""

#: On each host of two slices: an upload, a program and a fetch, with a pause before each.
ON_HOSTS = """
from harness.deadlines import deadline
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x4": 2}):
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    product = jax.jit(lambda x: x @ x.T)

    def once(slice_index):
        devices = [d for d in jax.devices() if d.slice_index == slice_index]
        mesh = Mesh(np.array(devices), ("chip",))
        x = jax.device_put(np.ones((64, 64), np.float32), NamedSharding(mesh, P("chip")))
        return np.asarray(product(x.block_until_ready()).block_until_ready())

    once(0), once(1)
    with jax.profiler.trace(os.environ["DIRECTORY"]):
        for slice_index in (0, 1):
            with jax.profiler.TraceAnnotation(f"step {slice_index}"):
                once(slice_index)
    say("done")
    wait_for("go")
"""

#: An executor is killed while its slice is profiled; the other slice computes.
LOSING = """
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x4": 2}):
    import jax, jax.numpy as jnp
    product = jax.jit(lambda x: x @ x)
    # (Every executor has served something.)
    x, *_ = all_of_them = [jax.device_put(jnp.ones((64, 64)), d) for d in jax.devices()]
    jax.block_until_ready(list(map(product, all_of_them)))
    jax.profiler.start_trace(os.environ["DIRECTORY"])
    say("profiled")
    wait_for("killed")
    product(x).block_until_ready()
    jax.profiler.stop_trace()
    say("stopped")
"""

#: It computes until it is told to end.
COMPUTING = """
with isc_pathways.connect(
    expected_tpu_instances={"tpuv6e:2x2": 1}, proxy_job_name="computing"
):
    import jax, jax.numpy as jnp
    f = jax.jit(lambda x: x @ x)
    x = f(jnp.ones((64, 64)))
    ended = threading.Event()
    threading.Thread(target=lambda: (wait_for("end"), ended.set())).start()
    say("computing")
    while not ended.is_set():
        f(x).block_until_ready()
"""


def session_of(directory: Path) -> Path:
    """The folder of the only profile below a directory."""
    (found,) = (directory / "plugins" / "profile").iterdir()
    return found


def opened(session: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Opens all files with XProf's converter: events by the plane and then by their names."""
    # (In a process of its own: XProf's C++ would share this one's protobufs and logs.)
    code = (
        "import json, sys\n"
        "from xprof.convert import raw_to_tool_data as convert\n"
        "options = {'trace_viewer_options': {}, 'session_path': sys.argv[1]}\n"
        "data, _ = convert.xspace_to_tool_data(sys.argv[2:], 'trace_viewer@', options)\n"
        "sys.stdout.write(data if isinstance(data, str) else data.decode())\n"
    )
    paths = sorted(map(str, session.glob("*.xplane.pb")))
    done = subprocess.run(
        [sys.executable, "-c", code, str(session), *paths],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return by_plane(json.loads(done.stdout)["traceEvents"])


def by_plane(events: Iterable[dict[str, Any]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    events = list(events)
    planes: dict[int, str] = {
        e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"
    }
    found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in planes.values()}
    for event in events:
        if event.get("ph") == "X":
            found[planes[event["pid"]]].setdefault(event["name"], []).append(event)
    return found


def facts_of(path: Path) -> dict[str, dict[str, Any]]:
    """The facts of each plane of a file."""
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    return {
        plane.name: {
            name: stat.str_value or stat.uint64_value
            for stat in plane.stats
            if (name := plane.stat_metadata[stat.metadata_id].name).startswith("sps_")
        }
        for plane in space.planes
    }


def modules_of(path: Path) -> dict[str, set[str]]:
    """The programs of each plane of a file."""
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    return {
        plane.name: {
            stat.str_value or plane.stat_metadata[stat.ref_value].name
            for line in plane.lines
            for event in line.events
            for stat in event.stats
            if plane.stat_metadata[stat.metadata_id].name == "hlo_module"
        }
        for plane in space.planes
    }


def test_the_digits_example(tmp_path: Path) -> None:
    with embedded(2), program(DIGITS, env={"DIRECTORY": str(tmp_path)}) as client:
        client.expect("done")
        assert client.wait() == 0, client.stderr
    session = session_of(tmp_path)
    planes = opened(session)
    host = next(path.name.split(".")[0] for path in session.glob("*.trace.json.gz"))
    devices = [f"sps-proxy /device:CUSTOM:slice {i // 4} host 0 device {i}" for i in range(8)]
    assert {f"{host} /host:CPU", "sps-proxy /host:CPU", *devices} <= set(planes)
    assert all(planes[name] for name in devices)
    # Perfetto's file has the same planes.
    with gzip.open(session / "perfetto_trace.json.gz") as file:
        perfetto = by_plane(json.load(file)["traceEvents"])
    assert set(devices) <= set(perfetto)
    # (The converter does not say of which program an event is.)
    modules = modules_of(session / "sps-proxy.xplane.pb")
    for name in devices:
        assert "jit_train_step" in modules[name.removeprefix("sps-proxy ")]
    for facts in facts_of(session / "sps-proxy.xplane.pb").values():
        assert facts["sps_process"] == "the proxy"
        assert facts["sps_clock_error_ns"] > 0


def test_executors_in_the_order_of_what_happened(tmp_path: Path) -> None:
    with (
        service("tpuv6e:2x4=2", 0, ["--engine=distributed"]),
        program(ON_HOSTS, env={"DIRECTORY": str(tmp_path)}) as client,
    ):
        client.expect("done")
        client.tell("go")
        assert client.wait() == 0, client.stderr
    session = session_of(tmp_path)
    planes = opened(session)
    hosts = [f"sps-slice{i}-host{j}" for i in range(2) for j in range(2)]
    # Annotations do not travel.
    [client_plane] = (name for name in planes if "step 0" in planes[name])
    assert client_plane.endswith("/host:CPU")
    for process in hosts:
        index, host = re.findall(r"\d", process)
        first = 8 * int(index) + 4 * int(host)
        devices = [
            f"{process} /device:CUSTOM:slice {index} host {host} device {i}"
            for i in range(first, first + 4)
        ]
        assert set(devices) <= set(planes), sorted(planes)
        facts = facts_of(session / f"{process}.xplane.pb")
        error_us = facts["/host:CPU"]["sps_clock_error_ns"] / 1000
        events = planes[client_plane]
        (step,) = events[f"step {index}"]
        upload, fetch = (sorted(e["ts"] for e in events[n]) for n in (UPLOAD, FETCH))
        ran = [e["ts"] for name in devices for found in planes[name].values() for e in found]
        # What the client's clock and an executor's show, up to the error that the profile names.
        assert during(step, upload)[0] - error_us <= min(ran)
        assert max(ran) <= during(step, fetch)[0] + error_us


def test_an_executor_that_is_killed_is_left_out(tmp_path: Path) -> None:
    with (
        service("tpuv6e:2x4=2", 0, ["--engine=distributed"]),
        program(LOSING, env={"DIRECTORY": str(tmp_path)}) as client,
    ):
        client.expect("profiled")
        killed = next(
            one for one in status()["executors"] if (one["slice"], one["host"]) == ("slice-1", 1)
        )
        os.kill(killed["pid"], signal.SIGKILL)
        client.tell("killed")
        client.expect("stopped")
        assert client.wait() == 0, client.stderr
    told = "".join(client.stderr)
    # (The other executor of a lost slice ends, too.)
    for host in (0, 1):
        assert f"the profile has no planes of slice 1 host {host}: the executor" in told, told
    session = session_of(tmp_path)
    left = {path.name.split(".")[0] for path in session.glob("sps-slice*.pb")}
    assert left == {"sps-slice0-host0", "sps-slice0-host1"}
    planes = opened(session)
    assert planes["sps-slice0-host0 /device:CUSTOM:slice 0 host 0 device 0"]
    assert not any(name.startswith("sps-slice1") for name in planes)


def during(step: dict[str, Any], times: list[float]) -> list[float]:
    """Those of some times that are within a step."""
    found = [time for time in times if step["ts"] <= time <= step["ts"] + step["dur"]]
    assert found, (step, times)
    return found


def test_sps_profile(tmp_path: Path) -> None:
    with embedded(1), program(COMPUTING) as client:
        client.expect("computing")
        done = sps("profile", "computing", "--seconds=0.5", f"--output={tmp_path}", "--json")
        taken = json.loads(done.stdout)
        session = session_of(tmp_path)
        assert taken == {
            "name": "computing",
            "directory": str(session),
            "files": ["sps-proxy.xplane.pb"],
            "notes": [],
        }
        planes = opened(session)
        operations = planes["sps-proxy /device:CUSTOM:slice 0 host 0 device 0"]
        assert any("dot" in name or "fusion" in name for name in operations), operations
        # Ctrl-C ends a profile, which leaves nothing.
        words = ("profile", "computing", "--seconds=600", f"--output={tmp_path}")
        with sps_running(*words) as process:
            assert process.stderr
            assert process.stderr.readline() == "sps: profiling computing for 600 s\n"
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 130
        assert session_of(tmp_path) == session
        client.tell("end")
        assert client.wait() == 0, client.stderr
