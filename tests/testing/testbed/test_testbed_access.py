"""Ways into the cluster: logs, port-forwards, permissions, and the record of who asked for what."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import IO

import pytest

from harness.deadlines import deadline
from harness.testbed.pods import container, exit_code, phase, pod
from shared_pathways_service.testing.testbed import ApiRefused, Namespace

kubectl_is_here = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")


@pytest.fixture
def kubectl(namespace: Namespace) -> list[str]:
    """The beginning of a kubectl command of the tenant's."""
    return ["kubectl", f"--kubeconfig={namespace.kubeconfig_of('tenant')}"]


def serve_http(namespace: Namespace, name: str) -> None:
    """Runs a pod that answers HTTP on port 29000, once it is ready."""
    server = container(
        "exec python -m http.server --bind $IP 29000",
        env=[{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        readinessProbe={"tcpSocket": {"port": 29000}},
    )
    namespace.create("pods", pod(name, server))
    namespace.wait_for_pod(
        name,
        lambda p: any(
            c["type"] == "Ready" and c["status"] == "True"
            for c in p.get("status", {}).get("conditions", ())
        ),
    )


@kubectl_is_here
def test_kubectl_forwards_a_port(namespace: Namespace, kubectl: list[str]) -> None:
    serve_http(namespace, "web")
    command = [*kubectl, "port-forward", "pod/web", ":29000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            port = _port(forward.stdout)
            url = f"http://127.0.0.1:{port}/"
            with urllib.request.urlopen(url, timeout=deadline(60.0)) as answer:
                assert b"Directory listing" in answer.read()
        finally:
            forward.terminate()


def _port(lines: IO[str]) -> int:
    line = lines.readline()
    found = re.search(r"127\.0\.0\.1:(\d+) -> 29000", line)
    assert found is not None, line
    return int(found[1])


@kubectl_is_here
def test_kubectl_follows_a_log(namespace: Namespace, kubectl: list[str], tmp_path: Path) -> None:
    talks = container(
        "echo one; until [ -e /shared/go-on ]; do sleep 0.1; done; echo two",
        volumeMounts=[{"name": "shared", "mountPath": "/shared"}],
    )
    volume = {"name": "shared", "hostPath": {"path": str(tmp_path)}}
    namespace.create("pods", pod("talks", talks, volumes=[volume]))
    namespace.wait_for_pod("talks", lambda p: phase(p) == "Running")
    with subprocess.Popen([*kubectl, "logs", "-f", "talks"], stdout=subprocess.PIPE) as logs:
        try:
            assert logs.stdout is not None
            assert logs.stdout.readline() == b"one\n"
            (tmp_path / "go-on").touch()
            assert logs.stdout.readline() == b"two\n"
            # It ends with the container.
            assert logs.stdout.read() == b""
        finally:
            logs.terminate()


@kubectl_is_here
def test_kubectl_runs_commands_in_a_container(namespace: Namespace) -> None:
    # Process 1 is the container's, for who comes in too: it takes the signals that it waits for.
    waits = container(
        "trap 'echo told; exit 4' USR1; echo up; while :; do sleep 0.1; done",
        env=[{"name": "GREETING", "value": "it's me"}],
    )
    namespace.create("pods", pod("inside", waits))
    namespace.wait_for_pod("inside", lambda p: phase(p) == "Running")
    namespace.wait_for_log("inside", "up")
    kubectl = ["kubectl", f"--kubeconfig={namespace.kubeconfig_of('operator')}", "exec", "inside"]

    def run(*command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        asked = [*kubectl, *(["-i"] if given else []), "--", *command]
        return subprocess.run(
            asked, input=given, capture_output=True, text=True, timeout=deadline(120.0), check=False
        )

    done = run("sh", "-c", 'echo "$GREETING"; tr "\\0" " " </proc/1/cmdline; exit 3')
    if "without PID namespaces" in done.stderr:
        pytest.skip("this machine permits no PID namespaces")
    assert done.returncode == 3, done
    assert done.stdout.startswith("it's me\nsh -c trap 'echo told"), done
    assert run("cat", given="both ways\n").stdout == "both ways\n"
    # The end of process 1 ends all others of the container, `kill` among them if it is slow.
    assert run("kill", "-s", "USR1", "1").returncode in {0, 128 + signal.SIGKILL}
    ended = namespace.wait_for_pod("inside", lambda p: phase(p) == "Failed")
    assert exit_code(ended) == 4
    assert "told" in namespace.log("inside")
    refused = run("true")
    assert refused.returncode != 0
    assert "container" in refused.stderr


def test_tenant_may_do_what_connect_needs_and_no_more(namespace: Namespace) -> None:
    tenant = namespace.testbed.api_of(namespace.user("tenant"))
    for allowed in ("pods", "batch/v1/jobs", "jobset.x-k8s.io/v1alpha2/jobsets", "events"):
        assert tenant.items(namespace.path(allowed)) == []
    with pytest.raises(ApiRefused, match="Forbidden"):
        tenant.create(namespace.path("pods"), pod("x", container("true")))
    with pytest.raises(ApiRefused, match="Forbidden"):
        tenant.items("/api/v1/nodes")


def test_user_with_rules_of_its_own(namespace: Namespace) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    user = namespace.testbed.api_of(namespace.user("looker", rules))
    assert user.items(namespace.path("pods")) == []
    with pytest.raises(ApiRefused, match='cannot get resource "pods"'):
        user.get(namespace.path("pods", "x"))


def test_requests_are_recorded_per_user(namespace: Namespace) -> None:
    user = namespace.user("tenant")
    tenant = namespace.testbed.api_of(user)
    namespace.items("pods")  # the administrator's
    tenant.items(namespace.path("pods"))
    with pytest.raises(ApiRefused, match="Forbidden"):
        tenant.items(namespace.path("secrets"))
    seen = [(r.verb, r.resource, r.code) for r in namespace.testbed.requests_of(user)]
    assert seen == [("list", "pods", 200), ("list", "secrets", 403)]


def test_pod_security_level_of_a_namespace(namespace: Namespace) -> None:
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    path = f"/api/v1/namespaces/{namespace.name}"
    namespace.testbed.api.patch(path, {"metadata": {"labels": label}})
    with pytest.raises(ApiRefused, match="violates PodSecurity"):
        namespace.create("pods", pod("x", container("true")))
