"""A service of Google's images: no token, no resource manager to ask, placement by the log."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import jaxlib.version
import pytest

from harness.programs import DEADLINE_S, sps
from harness.testbed.clients import KIND, client, nothing_left, tenant
from shared_pathways_service.agent.request import user_name
from shared_pathways_service.api.jax_releases import service_serdes
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.jax_client.plugin.plugin import INSECURE_VARIABLE
from shared_pathways_service.manifests.names import HEAD_JOB, LABEL_SESSION, labels_of
from shared_pathways_service.manifests.service_inputs import DEFAULT_SERVER_IMAGE, ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from shared_pathways_service.submission import submit
from shared_pathways_service.testing.testbed import DeployedService, Namespace, deploy_service
from shared_pathways_service.testing.testbed.deployed_service import OUR_PROXY_IMAGE
from tests.testbed.upstream_jobs import PROXY_IMAGE, running_pod, upstream_job

SOURCE = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 2}) as connection:
    import jax, jax.numpy as jnp
    say("runs", value=float(jnp.arange(4.0).sum()), devices=len(jax.devices()),
        placed=[[event.data["virtual_index"], event.data["instance_type"]]
                for event in heard if event.kind == "slice.placed"],
        states=[view.state for view in connection.slices])
    wait_for("leave")
"""

REFUSED = """
try:
    connecting(expected_tpu_instances={"tpuv6e:2x2": 1}).start()
except errors.SlicesTaken as error:
    say("refused", error=error.to_json())
"""

#: Beside one that holds all: it waits, and is placed when that one leaves.
QUEUED = """
def tell(event):
    if event.kind == "tenant.queued":
        say("queued")

with connecting(
    expected_tpu_instances={"tpuv6e:2x2": 1}, queue_timeout=300.0, on_event=tell
) as connection:
    import jax
    say("runs", devices=len(jax.devices()))
"""


#: As on a machine of Google Cloud, which this is not.
WITH_ALTS = """
try:
    connecting(
        expected_tpu_instances={"tpuv6e:2x2": 1},
        proxy_options=["use_insecure_credentials:false"],
    ).start()
except errors.CredentialsMismatch as error:
    say("mismatch", error=error.to_json())
"""


#: With images whose names tell no release of JAX.
SKEWED = """
for image in IMAGES:
    try:
        connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, proxy_server_image=image).start()
    except errors.VersionSkew as error:
        say("skew", error=error.to_json())
"""

JOB = (
    *("python3", "-c"),
    "import jax, jax.numpy as jnp; print(jax.device_count(), float(jnp.arange(4.0).sum()))",
)


def test_placement_is_read_from_the_proxys_log(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    namespace.add_nodes({KIND: 2}, cpu_nodes=0)
    deploy_service(namespace, {KIND: 2}, image=DEFAULT_SERVER_IMAGE)
    with client(namespace, SOURCE) as running:
        told = running.expect("runs")
        assert (told["value"], told["devices"]) == (6.0, 8)
        assert sorted(told["placed"]) == [[0, KIND], [1, KIND]]
        assert told["states"] == ["placed", "placed"]
        # The token is the link's: the proxy itself gets none.
        [proxy] = [pod for pod in namespace.items("pods") if LABEL_SESSION in labels_of(pod)]
        [container] = proxy["spec"]["containers"]
        assert not container.get("volumeMounts")
        # What other proxies hold is not in the log: their pods say it.
        with client(namespace, REFUSED) as other:
            refused = other.expect("refused")["error"]
            assert (refused["wanted"], refused["free"]) == ({KIND: 1}, {KIND: 0})
            assert refused["holders"] == [f"{user_name()}@{platform.node()}: 2 x {KIND}"]
            assert other.wait() == 0
        with client(namespace, QUEUED) as waiting:
            waiting.expect("queued")
            running.tell("leave")
            assert running.wait() == 0
            assert waiting.expect("runs")["devices"] == 4
            assert waiting.wait() == 0
    for name, value in tenant(namespace).items():
        monkeypatch.setenv(name, value)
    a_submitted_job_computes(namespace, tmp_path)
    nothing_left(namespace)


def a_submitted_job_computes(namespace: Namespace, workdir: Path) -> None:
    """Submits a job, whose image must be named."""
    where: dict[str, Any] = {"context": "testbed", "namespace": namespace.name}
    with pytest.raises(InvalidRequestError) as refused:
        submit(JOB, workdir=workdir, **where)
    assert refused.value.field == "image"
    job = submit(JOB, workdir=workdir, image=OUR_PROXY_IMAGE, **where)
    assert job.wait(DEADLINE_S).state == "succeeded", namespace.diagnostics()
    assert "4 6.0" in job.logs()
    namespace.delete("batch/v1/jobs", job.name)


def test_the_proxy_takes_the_credentials_of_the_services_servers(namespace: Namespace) -> None:
    namespace.add_nodes({KIND: 1}, cpu_nodes=0)
    deploy_service(
        namespace, {KIND: 1}, image=DEFAULT_SERVER_IMAGE, insecure_server_credentials=True
    )
    with client(namespace, QUEUED) as running:
        assert running.expect("runs")["devices"] == 4
        assert running.wait() == 0
    nothing_left(namespace)


def test_a_worker_on_nodes_of_another_type_is_not_counted(namespace: Namespace) -> None:
    namespace.add_nodes({KIND: 1}, cpu_nodes=0)
    inputs = ServiceInputs(name="pathways", instances={KIND: 1}, image=DEFAULT_SERVER_IMAGE)
    jobset = service_jobset(inputs)
    [head] = [job for job in jobset["spec"]["replicatedJobs"] if job["name"] == HEAD_JOB]
    [container] = head["template"]["spec"]["template"]["spec"]["containers"]
    container["args"] = [
        word.replace(f"--instance_type={KIND}", "--instance_type=tpuv5e:2x2")
        for word in container["args"]
    ]
    namespace.create("jobset.x-k8s.io/v1alpha2/jobsets", jobset)
    service = DeployedService(namespace, "pathways")
    namespace.wait_for_log(
        service.head["metadata"]["name"],
        "The newly added instance does not match with the expected instances",
    )
    assert "Slices Now Ready" not in service.log()


@pytest.mark.thorough
def test_a_proxy_without_plaintext_is_recognized(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace.add_nodes({KIND: 2}, cpu_nodes=0)
    service = deploy_service(namespace, {KIND: 2}, image=DEFAULT_SERVER_IMAGE)
    # It counts as ready though it answers nothing in plaintext; the client has no ALTS here.
    with client(namespace, WITH_ALTS) as running:
        mismatch = running.expect("mismatch")["error"]
        assert mismatch["client"] == f"{INSECURE_VARIABLE}=false"
        assert "remove" in mismatch["hint"]
        assert running.wait() == 0
    nothing_left(namespace)

    # One that somebody else started, without the variable.
    job = upstream_job(service.address)
    [container] = job["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": INSECURE_VARIABLE, "value": "True"}]
    namespace.create("batch/v1/jobs", job)
    pod = running_pod(namespace, job["metadata"]["name"])
    namespace.wait_for_log(pod, "IFRT proxy server started")
    monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig_of("tenant")))
    done = sps(
        "doctor",
        "--context=testbed",
        f"--namespace={namespace.name}",
        f"--proxy_job_name={job['metadata']['name']}",
        "--json",
        check=False,
    )
    check = json.loads(done.stdout)["checks"][-1]
    assert (check["name"], check["outcome"]) == ("proxy credentials", "failed")
    assert "hangs up on plaintext" in check["found"]
    assert f"{INSECURE_VARIABLE}=True" in check["found"]
    assert f"start the proxy with {INSECURE_VARIABLE}=true" in check["fix"]


@pytest.mark.skipif(
    (service_serdes(jaxlib.version.__version__, ours=False) or (0,))[0] == 0,
    reason="only XLA's server of JAX 0.12 and newer refuses older clients",
)
@pytest.mark.thorough
def test_a_proxy_is_asked_for_its_release_where_its_image_names_none(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace.add_nodes({KIND: 2}, cpu_nodes=0)
    service = deploy_service(namespace, {KIND: 2}, image=DEFAULT_SERVER_IMAGE)
    # A machine with another release of JAX: nothing before the proxy's answer can know better.
    metadata = tmp_path / "jaxlib-0.9.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: jaxlib\nVersion: 0.9.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    digest = PROXY_IMAGE.replace(":latest", f"@sha256:{'0' * 64}")
    with client(namespace, SKEWED.replace("IMAGES", repr([None, digest]))) as running:
        for _ in range(2):
            skew = running.expect("skew")["error"]
            assert "client = [0, 0], server = [2, " in skew["service"]
            assert "jaxlib 0.9.0 speaks" in skew["message"]
        assert running.wait() == 0
    nothing_left(namespace)

    job = upstream_job(service.address)
    job_name = job["metadata"]["name"]
    namespace.create("batch/v1/jobs", job)
    pod = running_pod(namespace, job_name)
    namespace.wait_for_log(pod, "IFRT proxy server started")
    monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig_of("tenant")))
    place = ("--context=testbed", f"--namespace={namespace.name}", "--json")
    done = sps("doctor", *place, f"--proxy_job_name={job_name}", check=False)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert "does not name its release" in checks["JAX"]["found"]
    assert checks["proxy credentials"]["outcome"] == "failed"
    assert checks["proxy credentials"]["found"].startswith(f"the proxy at {job_name} refuses: ")
    assert "client = [0, 0], server = [2, " in checks["proxy credentials"]["found"]
