"""`sps` in a cluster, as a tenant uses it."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.processes import REPOSITORY
from harness.programs import DEADLINE_S, sps, sps_failing, sps_json, sps_running
from harness.testbed.clients import KIND, deployed, nothing_left, proxies
from harness.testbed.kills import agent_logs, events_told_by
from harness.testbed.pods import wait_until_unschedulable
from harness.web_page import answer_of
from shared_pathways_service.agent.request import user_name
from shared_pathways_service.jax_client.plugin.plugin import INSECURE_VARIABLE
from shared_pathways_service.manifests.permissions import granting_rules, needed
from shared_pathways_service.manifests.service_inputs import DEFAULT_SERVER_IMAGE
from shared_pathways_service.testing.testbed import Namespace, deploy_service
from shared_pathways_service.testing.testbed.audit import AUDIT_LOG, read_audit_log
from tests.testbed.operating.cli import holder


def test_holders_and_logs_are_listed(namespace: Namespace, place: list[str]) -> None:
    service = deployed(namespace)
    with holder(namespace) as (running, name, pod):
        # (The Job's controller reports that its pod is ready a second later.)
        wait_until("the Job to be ready", lambda: _is_ready(namespace, name))
        namespace.wait_for_log(pod, "All placements done")
        # The same by the journal alone, and by labels alone.
        [mine] = sps_json("list")
        [same] = sps_json("list", *place)
        assert mine == same
        assert (mine["name"], mine["namespace"], mine["slices"]) == (
            name,
            namespace.name,
            {KIND: 1},
        )
        for words in ((), ("--all",)):
            [seen] = json.loads(
                _elsewhere("list", *place, *words, "--json", state=Path(os.environ["HOME"]))
            )
            assert {**mine, "state": "running", "since": "", "service": ""} == {
                **seen,
                "since": "",
                "service": "",
            }

        # The resource manager is asked who has which slice.
        told = sps_json("status", *place)
        assert told["service"]["address"] == service.address
        assert [t["name"] for t in told["tenants"]] == [name]
        assert sorted(s["state"] for s in told["slices"]) == ["ready", "ready"]
        assert [s["tenant"] for s in told["slices"] if s["tenant"]] == [name]
        roles = [process["role"] for process in told["processes"]]
        assert roles == ["rm", "worker", "worker", "proxy"]
        assert told["processes"][-1]["pod"] == pod
        only = sps_json("status", name)
        assert [s["tenant"] for s in only["slices"]] == [name]
        assert [process["name"] for process in only["processes"]] == [name]
        table = sps("status", *place).stdout
        assert name in table
        assert "kubernetes service" in table
        assert sps_failing("status", "isc-proxy-nobody", *place)[0] == 3

        # The resource manager's decisions about one's own, without naming the cluster.
        assert sps_json("explain", name)["state"] == "running"
        decided = [
            json.loads(line)
            for line in sps("events", f"--tenant={name}", "--json").stdout.splitlines()
        ]
        assert "slice.placed" in {one["kind"] for one in decided}
        assert {one["tenant"] for one in decided} == {name}

        # Logs: of one's own without naming the cluster.
        assert "All placements done" in sps("logs", name).stdout
        assert len(sps("logs", name, "--lines=1").stdout.splitlines()) == 1
        manager = sps("logs", "--component=rm", *place).stdout
        assert "2/2 Pathways Slices Now Ready" in manager
        workers = sps("logs", name, "--component=worker").stdout.splitlines()
        assert len({line.partition(": ")[0] for line in workers}) == 2
        assert any("MegaScale transport init succeeded." in line for line in workers)
        assert all(
            json.loads(line)["line"] for line in sps("logs", name, "--json").stdout.splitlines()
        )

        assert all(check["outcome"] != "failed" for check in sps_json("doctor", *place)["checks"])
        _check_page(name, place, namespace)

        # Followed to its end, and broken off.
        with (
            sps_running("logs", "-f", name) as whole,
            sps_running("logs", "-f", "--component=rm", *place) as endless,
        ):
            for process in (whole, endless):
                assert process.stdout
                assert process.stdout.readline()
            running.tell("leave")
            running.expect("left")
            # (Not by `communicate`, which does not see what `readline` has read ahead.)
            assert whole.stdout
            assert whole.stderr
            rest, err = whole.stdout.read(), whole.stderr.read()
            assert whole.wait(DEADLINE_S) == 0, err
            assert rest.count("All placements done") == 1
            endless.send_signal(signal.SIGINT)
            _, err = endless.communicate(timeout=DEADLINE_S)
            assert (endless.returncode, err) == (130, "")
    nothing_left(namespace)
    assert sps_failing("logs", name, *place)[0] == 3


def _check_page(name: str, place: list[str], namespace: Namespace) -> None:
    """Checks the connection's page of `sps ui`, through the API server."""
    with sps_running("ui", "--no-browser", "--json", *place) as command:
        assert command.stdout
        url = json.loads(command.stdout.readline())["url"]
        told = answer_of(url, "/api/connection", name=name)
        assert told["own"]["state"] == "serve"
        job = told["proxy"]["value"]
        assert (job["state"], job["namespace"]) == ("running", namespace.name)
        assert job["ends"]
        assert told["counters"] == {"value": None, "error": None, "hint": None}
        lines = answer_of(url, "/api/log", name=name)["lines"]
        assert any("All placements done" in line for line in lines)
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=DEADLINE_S)


def test_a_log_is_followed_across_pods(namespace: Namespace, place: list[str]) -> None:
    service = deployed(namespace, 1)
    first = service.head["metadata"]
    with sps_running("logs", "-f", "--component=rm", "--lines=1", *place) as process:
        assert process.stdout
        assert "serving on" not in process.stdout.readline()
        namespace.delete("pods", first["name"])
        service.wait_for_head(other_than=first["uid"])
        for line in process.stdout:
            if "Pathways Server serving on" in line:
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, err) == (130, "")


def test_a_connection_is_deleted_from_outside(namespace: Namespace, place: list[str]) -> None:
    deployed(namespace, 1)
    with holder(namespace) as (running, name, _):
        for words in ((name,), (name, *place)):
            code, err = sps_failing("delete", *words)
            assert code == 2
            assert "--yes" in err
            assert str(running.pid) in err
        assert proxies(namespace)
        assert sps_json("delete", name, "--yes", *place) == {"name": name, "deleted": True}
        # (Its agent hears of it a moment later.)
        wait_until("the program's agent to notice", _is_told_of_deletion)
        running.tell("leave")
        assert "deleted from outside this session" in running.expect("deleted")["message"]
    nothing_left(namespace)
    assert sps_failing("delete", name, *place)[0] == 3
    assert sps_failing("delete", name)[0] == 3


@pytest.mark.thorough
def test_googles_images_are_shown_by_pods_and_labels(
    namespace: Namespace, place: list[str]
) -> None:
    namespace.add_nodes({KIND: 2}, cpu_nodes=0)
    deploy_service(namespace, {KIND: 2}, image=DEFAULT_SERVER_IMAGE)
    with holder(namespace) as (_, name, pod):
        # (The Job's controller reports that its pod is ready a second later.)
        told = wait_until("the Job to be ready", lambda: _status_of_ready_job(place))
        assert [(s["id"], s["state"], s["tenant"]) for s in told["slices"]] == [
            ("worker-0", "ready", None),
            ("worker-1", "ready", None),
        ]
        [holding] = told["tenants"]
        assert (holding["name"], holding["user"]) == (name, user_name())
        assert (holding["host"], holding["state"]) == (platform.node(), "running")
        assert holding["slices"] == [
            {"index": 0, "instance_type": KIND, "state": None, "slice_id": None}
        ]
        assert pod in {process["pod"] for process in told["processes"]}
        assert "Transition slice 0" in sps("logs", name).stdout
        [known] = [c for c in sps_json("doctor", *place)["checks"] if c["name"] == "service"]
        assert "Pathways on Cloud" in known["found"]

        check = _credentials_of(name, place)
        assert (check["outcome"], check["name"]) == ("ok", "proxy credentials")
        assert f"{INSECURE_VARIABLE}=true" in check["found"]
        check = _credentials_of(name, place, "--proxy_options=use_insecure_credentials:false")
        assert check["outcome"] == "failed"
        assert name in check["found"]
        assert "remove use_insecure_credentials:false" in check["fix"]
        assert "there is no Job nobody" in _credentials_of("nobody", place)["found"]
    nothing_left(namespace)


def _is_ready(namespace: Namespace, name: str) -> bool:
    [job] = namespace.items("batch/v1/jobs", fieldSelector=f"metadata.name={name}")
    return bool(job["status"].get("ready"))


def _is_told_of_deletion() -> bool:
    return any(
        event.kind == "proxy.deleted" for log in agent_logs() for event in events_told_by(log)
    )


def _status_of_ready_job(place: list[str]) -> dict[str, Any] | None:
    told: dict[str, Any] = sps_json("status", *place)
    return told if [one["state"] for one in told["tenants"]] == ["running"] else None


def _credentials_of(name: str, place: list[str], *options: str) -> dict[str, Any]:
    done = sps("doctor", *place, f"--proxy_job_name={name}", *options, "--json", check=False)
    check: dict[str, Any] = json.loads(done.stdout)["checks"][-1]
    return check


@pytest.mark.thorough
def test_upstreams_command_runs_on_a_cluster(namespace: Namespace, place: list[str]) -> None:
    service = deployed(namespace, 1)
    program = "import jax; print(len(jax.devices()), jax.numpy.arange(4.0).sum())"
    done = sps(
        "run",
        *place,
        f"--pathways_service={service.address}",
        "--gcs-bucket=scratch",
        "--tpu_count=1",
        f"--tpu_type={KIND}",
        "--proxy_job_name=isc-proxy-mine",
        "--proxy_options=cpu:100m,memory:1Gi",
        f'--command={sys.executable} -c "{program}"',
    )
    assert done.stdout == "4 6.0\n"
    nothing_left(namespace)
    code, err = sps_failing("run", *place, f"--slices={KIND}=2", "--", "true")
    assert code == 125
    assert "has 1 slices" in err


def test_doctor_reports_problems_and_fixes(
    namespace: Namespace, place: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = sps("doctor", *place, "--json", check=False)
    assert done.returncode == 3
    report = json.loads(done.stdout)
    failed = [check for check in report["checks"] if check["outcome"] == "failed"]
    assert [check["name"] for check in failed] == ["service"]
    assert not report["ok"]
    assert all(check["fix"] for check in failed)

    lacking = [p for p in needed(ours=True) if p.resource != "jobs"]
    namespace.user("poor", granting_rules(lacking))
    monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig_of("poor")))
    done = sps("doctor", *place, check=False)
    assert done.returncode == 5
    assert "FAILED   permissions" in done.stdout
    assert '"resources": ["jobs"]' in done.stdout

    assert sps_failing("doctor", "--context=nowhere")[0] == 2
    assert sps_failing("doctor", "--cluster=c")[0] == 2


def test_status_waits_for_a_service_and_names_the_obstacle(
    namespace: Namespace, place: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who waits need not be one who could connect.
    reading = [p for p in needed(ours=False) if p.verb in ("get", "list", "watch")]
    reading = [p for p in reading if p.resource != "pods/portforward"]
    namespace.user("reader", granting_rules(reading))
    monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig_of("reader")))
    deploy_service(namespace, {KIND: 1}, ready=False).wait_for_head()
    wait_until_unschedulable(namespace, "worker")
    code, err = sps_failing("status", "--wait=1", *place)
    assert code == 3
    assert "not ready within 1 s" in err
    assert "no node takes it" in err
    done = sps("status", *place)
    assert "worker pathways-worker-0-0-" in done.stdout
    assert "no node takes it" in done.stdout
    namespace.add_nodes({KIND: 1}, cpu_nodes=0)
    told = sps_json("status", f"--wait={DEADLINE_S}", *place)
    assert [item["state"] for item in told["slices"]] == ["ready"]


def test_a_connection_needs_few_requests(namespace: Namespace, place: list[str]) -> None:
    deployed(namespace, 1)
    with holder(namespace) as (running, _, _):
        running.tell("leave")
        running.expect("left")
    nothing_left(namespace)
    log = namespace.testbed.directory / AUDIT_LOG
    asked = read_audit_log(log, namespace.user("tenant").name)
    counted = [f"{e.verb} {e.resource}" for e in asked if not (e.is_watch or e.is_dial)]
    assert len(counted) <= 16, counted
    assert counted.count("create jobs") == counted.count("delete jobs") == 1


def _elsewhere(*words: str, state: Path) -> str:
    """Runs `sps` where the journal is another: only the cluster tells."""
    return subprocess.run(
        [sys.executable, "-m", "shared_pathways_service.cli", *words],
        env={**os.environ, "SPS_STATE_DIR": str(state)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
        cwd=REPOSITORY,
    ).stdout
