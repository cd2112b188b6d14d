"""Errors that Google's page on Pathways lists: what a user of connect() sees of each."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.programs import DEADLINE_S
from harness.testbed.clients import KIND, client, nothing_left, tenant
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.manifests.names import PROXY_CONTAINER
from shared_pathways_service.manifests.service_inputs import DEFAULT_SERVER_IMAGE, ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from shared_pathways_service.submission import submit
from shared_pathways_service.testing.google_images import (
    FULL_BUCKET,
    LOST_BUCKET,
    MEMORY_WISH,
    MISSING_BUCKET,
    PLACEMENT_WISH,
)
from shared_pathways_service.testing.testbed import Namespace, deploy_service
from shared_pathways_service.testing.testbed.deployed_service import OUR_PROXY_IMAGE

#: Names the error that starting or leaving a connection raises.
FAILS = """
try:
    with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, **OPTIONS):
        import jax, jax.numpy as jnp
        say("runs")
        WORK
except errors.SharedPathwaysError as error:
    say("failed", error=error.to_json(), cause=str(error.__cause__))
"""

#: Says the first event of a kind.
NOTES = """
noted = []
def note(event):
    if event.kind == "KIND" and not noted:
        noted.append(event)
        say("SAID")
connecting = functools.partial(connecting, on_event=note)
"""
#: Says that the connection waits for its service.
WATCHES = NOTES.replace("KIND", "service.waiting").replace("SAID", "waiting")

#: What a program sees of a full memory: JAX's error, then the proxy's end.
ALLOCATES = """
        held = []
        try:
            while True:
                held.append(jax.block_until_ready(jnp.ones(1 << 20)))
        except jax.errors.JaxRuntimeError as error:
            say("jax", text=str(error))
        while True:
            float(held[0].sum())
"""

#: An array of a proxy that is gone.
ASKS = """
        x = jnp.arange(4.0)
        say("value", value=float(x.sum()))
        wait_for("gone")
        say("deleted", deleted=x.is_deleted())
        float(x.sum())
"""

HOLDS = (
    NOTES.replace("KIND", "tenant.queued").replace("SAID", "queued")
    + """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, queue_timeout=300.0):
    import jax, jax.numpy as jnp
    say("runs", value=float(jnp.arange(4.0).sum()))
    wait_for("leave")
"""
)


def failing(work: str = "pass", **options: object) -> str:
    return FAILS.replace("**OPTIONS", f"**{options!r}").replace("WORK", work.strip())


@pytest.mark.parametrize(
    ("bucket", "cause", "advice"),
    [
        (MISSING_BUCKET, "does not exist", "create the bucket"),
        (FULL_BUCKET, "has no room for another lifecycle rule", "delete lifecycle rules"),
    ],
)
def test_the_bucket_of_a_request(
    namespace: Namespace, bucket: str, cause: str, advice: str
) -> None:
    namespace.add_nodes({KIND: 1}, cpu_nodes=0)
    deploy_service(namespace, {KIND: 1}, image=DEFAULT_SERVER_IMAGE)
    with client(namespace, failing(gcs_bucket=bucket)) as running:
        error = running.expect("failed")["error"]
        assert running.wait() == 0
    assert error["type"] == "ProxyFailed"
    assert f"the bucket of its --gcs_scratch_location {cause}" in error["message"]
    assert advice in error["hint"]
    assert "persistent cache storage" in "\n".join(error["log_tail"])
    nothing_left(namespace)


def test_the_bucket_of_a_service(namespace: Namespace) -> None:
    start = create_service_without_bucket(namespace)
    # It is not waited for until the end of timeout=: it does not become ready by itself. (Its first
    # start may look ready, so that a proxy is created, which ends.)
    with client(namespace, WATCHES + failing(timeout=80)) as running:
        running.expect("waiting")
        start()
        error = running.expect("failed")["error"]
        assert running.wait() == 0
    is_the_services(error)
    nothing_left(namespace)


def test_a_job_at_a_service_without_its_bucket(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in tenant(namespace).items():
        monkeypatch.setenv(name, value)
    where: dict[str, Any] = {
        "context": "testbed",
        "namespace": namespace.name,
        "image": OUR_PROXY_IMAGE,
        "workdir": tmp_path,
    }
    start = create_service_without_bucket(namespace)
    job = submit(["true"], **where)
    start()
    why = "the bucket of its --gcs_scratch_location does not exist"
    wait_until("the reason", lambda: why in job.status().reason)
    assert job.status().is_active

    def refused() -> ServiceNotReady | None:
        try:
            submit(["true"], **where).cancel()
        except ServiceNotReady as error:
            return error
        return None

    # (The service may still be in its first start.)
    is_the_services(wait_until("the refusal", refused).to_json())
    assert job.cancel().state == "cancelled"
    namespace.delete("batch/v1/jobs", job.name)
    nothing_left(namespace)


def create_service_without_bucket(namespace: Namespace) -> Callable[[], None]:
    """Creates a service whose pods have no nodes yet; returns what lets them start, and crash."""
    testbed, [node] = namespace.testbed, namespace.nodes
    testbed.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    inputs = ServiceInputs(
        name="pathways",
        instances={KIND: 1},
        image=DEFAULT_SERVER_IMAGE,
        gcs_bucket=MISSING_BUCKET,
    )
    namespace.create("jobset.x-k8s.io/v1alpha2/jobsets", service_jobset(inputs))

    def start() -> None:
        namespace.add_nodes({KIND: 1}, cpu_nodes=0)
        testbed.uncordon(node)

    return start


def proxy_process(namespace: Namespace) -> int | None:
    """Returns the process id of the namespace's proxy; None: it does not run."""
    found = [
        containers[PROXY_CONTAINER]
        for pod, containers in namespace.processes().items()
        if "isc-proxy" in pod and PROXY_CONTAINER in containers
    ]
    return found[0] if found else None


def is_crashing(pod: dict[str, Any]) -> bool:
    """Whether the server of a pod has ended by itself, and not only by a signal."""
    [status] = pod["status"]["containerStatuses"]
    ended = status["lastState"].get("terminated") or {}
    return ended.get("exitCode") == 1


def is_the_services(error: dict[str, Any]) -> None:
    """Checks that an error is that of a service whose bucket is missing."""
    assert error["type"] == "ServiceNotReady", error
    assert "the bucket of its --gcs_scratch_location does not exist" in error["message"]
    assert "--gcs-bucket of `sps deploy`" in error["hint"]


@pytest.mark.race
def test_the_bucket_of_a_service_is_deleted_before_its_proxy_serves(
    namespace: Namespace, tmp_path: Path
) -> None:
    namespace.add_nodes({KIND: 1}, cpu_nodes=0)
    deleted = tmp_path / "deleted"
    service = deploy_service(
        namespace, {KIND: 1}, image=DEFAULT_SERVER_IMAGE, gcs_bucket=f"{LOST_BUCKET}{deleted}"
    )
    # The proxy has another bucket, and waits for its slices.
    options: dict[str, Any] = {
        "gcs_bucket": "gs://its-own",
        "proxy_options": [f"xla_flags:{PLACEMENT_WISH}={DEADLINE_S}"],
    }
    with client(namespace, failing(**options)) as running:
        proxy = wait_until("the proxy", lambda: proxy_process(namespace))
        deleted.touch()
        for pod in service.pods():
            for pid in namespace.processes()[pod["metadata"]["name"]].values():
                os.kill(pid, signal.SIGKILL)
        wait_until("crash loops", lambda: all(map(is_crashing, service.pods())))
        os.kill(proxy, signal.SIGKILL)
        error = running.expect("failed")["error"]
        assert running.wait() == 0
    is_the_services(error)
    assert f"ended by itself: it was ended by signal {signal.SIGKILL:d}" in error["message"]
    nothing_left(namespace)


def test_a_full_memory_of_the_devices(namespace: Namespace) -> None:
    namespace.add_nodes({KIND: 1}, cpu_nodes=0)
    deploy_service(namespace, {KIND: 1}, image=DEFAULT_SERVER_IMAGE)
    options = {"proxy_options": [f"xla_flags:{MEMORY_WISH}={16 << 20}"]}
    with client(namespace, failing(ALLOCATES, **options)) as running:
        running.expect("runs")
        text = running.expect("jax")["text"]
        assert "RESOURCE_EXHAUSTED" in text or "UNAVAILABLE" in text
        error = running.expect("failed")["error"]
        assert running.wait() == 0
    assert error["type"] == "ProxyFailed"
    assert error["exit_code"] == -signal.SIGTERM
    assert "ended by itself" in error["message"]
    assert "the memory of the devices (HBM) was probably full" in error["message"]
    assert "use less memory" in error["hint"]
    nothing_left(namespace)


def test_an_array_of_a_proxy_that_is_gone(namespace: Namespace) -> None:
    namespace.add_nodes({KIND: 1}, cpu_nodes=0)
    deploy_service(namespace, {KIND: 1}, image=DEFAULT_SERVER_IMAGE)
    with client(namespace, failing(ASKS)) as running:
        running.expect("runs")
        assert running.expect("value")["value"] == 6.0
        proxy = proxy_process(namespace)
        assert proxy is not None
        os.kill(proxy, signal.SIGKILL)
        running.tell("gone")
        # JAX's client answers False without asking (older ones ask, and log the error that Google's
        # page has). The next use of the array raises it.
        assert running.expect("deleted")["deleted"] is False
        failed = running.expect("failed")
        assert running.wait() == 0
    assert failed["cause"].startswith("UNAVAILABLE: Connection to IFRT proxy server was terminated")
    error = failed["error"]
    assert error["type"] == "ProxyFailed"
    assert "what was on its slices is lost; connect again" in error["hint"]
    nothing_left(namespace)


@pytest.mark.race
def test_the_slices_of_a_killed_client_go_to_the_next_one(namespace: Namespace) -> None:
    namespace.add_nodes({KIND: 1}, cpu_nodes=0)
    deploy_service(namespace, {KIND: 1}, image=DEFAULT_SERVER_IMAGE)
    # The killed client's proxy serves nobody else; its agent deletes it, and a new one begins.
    with client(namespace, HOLDS) as first:
        assert first.expect("runs")["value"] == 6.0
        with client(namespace, HOLDS) as second:
            second.expect("queued")
            first.signal(signal.SIGKILL)
            assert second.expect("runs")["value"] == 6.0
            second.tell("leave")
            assert second.wait() == 0
    nothing_left(namespace)
