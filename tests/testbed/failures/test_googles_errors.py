"""Errors that Google's page on Pathways lists: what a user of connect() sees of each."""

from __future__ import annotations

import os
import signal

import pytest

from harness.testbed.clients import KIND, client, nothing_left
from shared_pathways_service.manifests.names import PROXY_CONTAINER
from shared_pathways_service.manifests.service_inputs import DEFAULT_SERVER_IMAGE, ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from shared_pathways_service.testing.google_images import (
    FULL_BUCKET,
    MEMORY_WISH,
    MISSING_BUCKET,
)
from shared_pathways_service.testing.testbed import Namespace, deploy_service

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

HOLDS = """
queued = []
def note(event):
    if event.kind == "tenant.queued" and not queued:
        queued.append(event)
        say("queued")

with connecting(
    expected_tpu_instances={"tpuv6e:2x2": 1}, queue_timeout=300.0, on_event=note
):
    import jax, jax.numpy as jnp
    say("runs", value=float(jnp.arange(4.0).sum()))
    wait_for("leave")
"""


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
    namespace.add_nodes({KIND: 1}, cpu_nodes=0)
    inputs = ServiceInputs(
        name="pathways",
        instances={KIND: 1},
        image=DEFAULT_SERVER_IMAGE,
        gcs_bucket=MISSING_BUCKET,
    )
    namespace.create("jobset.x-k8s.io/v1alpha2/jobsets", service_jobset(inputs))
    # It is not waited for until the end of timeout=: it does not become ready by itself.
    with client(namespace, failing(timeout=80)) as running:
        error = running.expect("failed")["error"]
        assert running.wait() == 0
    assert error["type"] == "ServiceNotReady"
    assert "the bucket of its --gcs_scratch_location does not exist" in error["message"]
    assert "--gcs-bucket of `sps deploy`" in error["hint"]


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
        [pod] = [pod for pod in namespace.processes() if "isc-proxy" in pod]
        os.kill(namespace.processes()[pod][PROXY_CONTAINER], signal.SIGKILL)
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
