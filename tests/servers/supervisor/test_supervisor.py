"""The embedded service with real processes: its start, its ends, and the deaths of its parts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from harness.deadlines import wait_until
from harness.processes import KIND, ServerProcess
from harness.proxy.programs import ENDLESS
from harness.proxy.raw import RawClient, single
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.servers.serving.last_requests_file import read_unfinished
from tests.servers.supervisor.support import (
    MODULE,
    EmbeddedClient,
    assert_clean,
    embedded,
    expect_state,
    kill,
    runtime_paths,
    sleeper,
    started,
    wait_for_end,
)

pytestmark = pytest.mark.race


def test_starts_all_and_ends_all() -> None:
    with embedded(slices=f"{KIND}=1,tpuv5e:4x2=1", standby=1) as (server, c):
        # Two hosts of four chips each make the larger slice.
        workers = sorted((w.name, w.slice) for w in c.processes("worker"))
        assert workers == [
            ("slice-0-0", "slice-0"),
            ("slice-1-0", "slice-1"),
            ("slice-1-1", "slice-1"),
        ]
        assert len(c.processes("standby")) == 1
        assert [p.pid for p in c.processes("supervisor")] == [server.pid]
        everything = c.all_identities()
        assert len(everything) == 6
        state = json.loads(runtime_paths().state.read_text())
        assert state["slices"] == {KIND: 1, "tpuv5e:4x2": 1}
        assert server.stop() == 0
        wait_for_end(everything)
        assert_clean(runtime_paths())
        logs = Path(state["log_dir"])
        assert "*** 2/2 Pathways Slices Now Ready" in (logs / "rm.log").read_text()
        assert "service.ending" in (logs / "supervisor.log").read_text()
        assert all(path.stat().st_mode & 0o077 == 0 for path in logs.iterdir())


def test_a_second_service_is_refused_and_disturbs_nothing() -> None:
    with embedded() as (first, client):
        with ServerProcess(MODULE, ["--standby_proxies=0"]) as second:
            assert second.ready is None
            assert second.wait() == 1
            assert f"process {first.pid}" in second.lines[-1]
        assert client.holders() == {"slice-0": ""}


def test_supervisor_killed_takes_all_along_and_the_next_start_works() -> None:
    with embedded(standby=1) as (server, client):
        client.create()
        client.wait_for_holders("isc-proxy-a")
        everything = client.all_identities()
        assert len(everything) >= 4
        server.kill()
        wait_for_end(everything)
    with embedded() as (server, client):
        assert client.holders() == {"slice-0": ""}
        assert server.stop() == 0
        assert_clean(runtime_paths())


def test_resource_manager_killed_comes_back_and_tenants_keep_their_slices() -> None:
    with embedded(slices=f"{KIND}=2") as (_, client):
        client.create()
        before = client.wait_for_holders("isc-proxy-a", "")
        [manager] = client.processes("rm")
        kill(manager.pid)
        wait_until(
            "another resource manager",
            lambda: [p for p in client.processes("rm") if p.pid != manager.pid],
        )
        after = client.wait_for_holders("isc-proxy-a", "")
        assert after == before
        [again] = client.processes("rm")
        assert again.restarts == 1


def test_worker_killed_comes_back() -> None:
    with embedded() as (_, client):
        [worker] = client.processes("worker")
        kill(worker.pid)
        wait_until(
            "another worker", lambda: [p for p in client.processes("worker") if p.restarts == 1]
        )
        client.wait_for_holders("")


def test_worker_is_given_up_after_its_restarts() -> None:
    with embedded("--max_slice_restarts=1", slices=f"{KIND}=2") as (_, client):
        victim = "slice-1"

        def restarted(times: int) -> int | None:
            found = [p for p in client.processes("worker") if p.slice == victim]
            return next((p.pid for p in found if p.restarts == times), None)

        for times in (0, 1):
            kill(wait_until(f"restart {times} of {victim}", partial(restarted, times)))
        log = Path(json.loads(runtime_paths().state.read_text())["log_dir"]) / "supervisor.log"
        wait_until("giving up", lambda: "process.given_up" in log.read_text())
        assert [p.slice for p in client.processes("worker")] == ["slice-0"]


def test_proxy_serves_and_ends_with_its_slices_released() -> None:
    with embedded(standby=1) as (server, client):
        [standby] = client.processes("standby")
        proxy = client.create(session="s-1", tcp_port=0, owner_pid=0)
        assert proxy.token
        watch = client.watch()
        serving = expect_state(watch, pb.Proxy.SERVING)
        assert serving.pid == standby.pid, "the warm one was used"
        assert not serving.token
        socket = Path(serving.address.removeprefix("unix:"))
        assert socket.is_socket()
        assert serving.address == serving.address.lower()
        assert serving.tcp_port > 0
        client.wait_for_holders("isc-proxy-a")
        wait_until("a new standby", lambda: client.processes("standby"))
        again = client.create(session="s-1")
        assert (again.uid, again.token) == (proxy.uid, proxy.token), "a retried request"
        assert not client.delete(uid="other")
        assert not client.delete(session="other")
        assert client.delete(uid=proxy.uid, session="s-1", reason="done")
        assert client.holders() == {"slice-0": ""}, "released when the call returns"
        over = expect_state(watch, pb.Proxy.DELETED)
        assert over.reason == "done"
        assert watch.next() is None, "the watch ends with the proxy"
        assert not client.delete()
        assert not socket.exists()
        # The old session gets what it had; the name is free for another one.
        assert client.create(session="s-1").state == pb.Proxy.DELETED
        assert client.create(session="s-2").state == pb.Proxy.STARTING
        assert server.stop() == 0


def test_each_end_of_a_proxy_frees_its_slices_and_is_reported() -> None:
    with (
        embedded("--tenant_ttl_s=3600", slices=f"{KIND}=2") as (_, client),
        sleeper() as owner,
    ):
        client.create("owned", owner_pid=owner.pid, owner_start=started(owner.pid))
        client.create("short", max_lifetime_s=3600)
        client.wait_for_holders("owned", "short")
        client.create("late", xla_flags=["--xla_cpu_enable_fast_math=false"])
        refused = expect_state(client.watch("late"), pb.Proxy.EXITED)
        assert "no tpuv6e:2x2 slice is free (1 wanted)" in refused.reason
        assert json.loads(refused.exit_report)["kind"] == "slices_taken"

        watch = client.watch("short")
        kill(expect_state(watch, pb.Proxy.SERVING).pid)
        killed = expect_state(watch, pb.Proxy.EXITED)
        assert killed.exit_code == -signal.SIGKILL
        assert killed.reason == "killed by SIGKILL"
        assert any("Pathways Proxy serving" in line for line in killed.log_tail)
        client.wait_for_holders("owned", "")

        watch = client.watch("owned")
        owner.kill()
        left = expect_state(watch, pb.Proxy.DELETED)
        assert left.reason == f"its owner, process {owner.pid}, has ended"
        client.wait_for_holders("", "")

        client.create("short-lived", max_lifetime_s=0.01)
        over = expect_state(client.watch("short-lived"), pb.Proxy.DELETED)
        assert over.reason == "its max_lifetime of 0.01 s is over"


def test_a_crash_of_a_proxy_is_explained_and_kept() -> None:
    with embedded() as (_, client):
        token = client.create().token
        watch = client.watch()
        serving = expect_state(watch, pb.Proxy.SERVING)
        client.wait_for_holders("isc-proxy-a")
        initialization = {"sps_token": token.encode()}
        last = client.paths.last_requests(serving.uid)
        with RawClient(serving.address, initialization_data=initialization) as session:
            array = session.put(np.zeros(4, np.float32), single(0))
            (never,) = session.execute(session.compile(ENDLESS, [0]), [array])
            session.begin_ready(never)
            wait_until("the program to run", lambda: read_unfinished(last).running)
            os.kill(serving.pid, signal.SIGABRT)
            over = expect_state(watch, pb.Proxy.EXITED)
        assert over.exit_code == -signal.SIGABRT
        told, report = over.reason.split("; report: ")
        assert told.startswith(
            "killed by SIGABRT while it was running endless on slice 0; its last"
        )
        assert "loaded_executable_execute_request endless" in told
        kept = json.loads(Path(report).read_text())
        assert kept["running"] == ["endless on slice 0"]
        assert "compile_request" in kept["last_requests"]
        assert any("Fatal Python error: Aborted" in line for line in kept["log_tail"])
        assert Path(report).parent == Path(over.log_path).parent
        # If the resource manager is slow to release its slices, the end is reported earlier.
        wait_until("its record to be removed", lambda: not last.exists())


def test_ends_without_any_user() -> None:
    with ServerProcess(MODULE, ["--idle_s=0.1", "--standby_proxies=0"]) as server:
        assert server.wait() == 0
    assert_clean(runtime_paths())


def test_ends_after_its_last_user() -> None:
    flags = ["--idle_s=5", f"--slices={KIND}=1", "--spares=0", "--standby_proxies=0"]
    # Its resource manager may take longer to start than the service stays without a user.
    with ServerProcess(MODULE, flags, tells_ready=False) as server:
        wait_until("the service to listen", runtime_paths().state.exists)
        with EmbeddedClient() as client:
            joined = client.join()
            reply = joined.next()
            assert reply.detached
            assert list(reply.instance_types) == [KIND]
            assert reply.jaxlib_version
            joined.close()
            assert server.wait() == 0


def test_shutdown_refuses_what_comes_later() -> None:
    with embedded() as (server, client):
        client.create()
        client.wait_for_holders("isc-proxy-a")
        watch = client.watch()
        expect_state(watch, pb.Proxy.SERVING)
        client.supervisor.Shutdown(pb.ShutdownRequest(reason="maintenance"), **client.call)
        late = client.join()
        assert late.next() is None
        code, _ = late.status()
        assert code.name == "UNAVAILABLE"
        assert expect_state(watch, pb.Proxy.DELETED).reason == "the service is ending"
        assert server.wait() == 0
        assert_clean(runtime_paths())


def test_a_child_that_does_not_listen_is_killed_in_the_end() -> None:
    with embedded() as (server, client):
        [worker] = client.processes("worker")
        os.kill(worker.pid, signal.SIGSTOP)
        everything = client.all_identities()
        assert server.stop() == 0
        wait_for_end(everything)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_nowhere() -> None:
    source = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "def denied(what):\n"
        "    try: what()\n"
        "    except PermissionError: return True\n"
        "    return False\n"
        "directory, = sys.argv[1:]\n"
        "dial = lambda: socket.socket(socket.AF_UNIX).connect(directory + '/s.sock')\n"
        "assert denied(lambda: os.listdir(directory))\n"
        "assert denied(lambda: open(directory + '/service.token'))\n"
        "assert denied(lambda: open(directory + '/state.json'))\n"
        "assert denied(dial)\n"
    )
    with embedded() as (_, client):
        directory = client.paths.directory
        # The test's own parent directory is private already: it must not be what protects.
        directory.parent.chmod(0o711)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", source, str(directory)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert EmbeddedClient().holders() == {"slice-0": ""}
