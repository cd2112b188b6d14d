"""A service that verifies users believes the API server, and not what a proxy says of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.openmetrics import text_to_families, value
from harness.programs import sps
from harness.session_requests import job_inputs
from harness.testbed.clients import KIND, client, nothing_left
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.manifests.names import (
    ANNOTATION_AUDIENCE,
    ANNOTATION_VERIFIED_USER,
)
from shared_pathways_service.manifests.proxy_inputs import IdentityInputs, ProxyJobInputs
from shared_pathways_service.manifests.proxy_job import proxy_job, token_secret
from shared_pathways_service.manifests.verified_users.program_parts import programs_claim
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.submission import submit
from shared_pathways_service.testing.testbed import ApiRefused, Namespace, deploy_service
from shared_pathways_service.testing.testbed.api import Object
from shared_pathways_service.testing.testbed.deployed_service import (
    OUR_PROXY_IMAGE,
    DeployedService,
)
from tests.testbed.roles import prepare_verification

JOBS, JOBSETS = "batch/v1/jobs", "jobset.x-k8s.io/v1alpha2/jobsets"
HOLDER = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax
    jax.jit(lambda x: x * 3 + 1)(jax.numpy.arange(8.0)).block_until_ready()
    say("holds", name=connection.proxy_job_name)
    wait_for("leave")
"""
REFUSED = """
try:
    connecting(expected_tpu_instances={"tpuv6e:2x2": 1}).start()
except errors.ProxyFailed as error:
    say("refused", message=str(error), code=error.exit_code, log=error.log_tail)
"""
OTHER = "bob"
JOB = "import jax, time; print(jax.device_count(), flush=True); time.sleep(600)"


def call(namespace: Namespace, method: str, message: Any) -> Any:
    """Calls the resource manager."""

    async def ask() -> Any:
        place = Place(context="testbed", namespace=namespace.name)
        async with manager_of(place, Settings.load()) as manager:
            return await manager.ask(getattr(manager.stub, method), message)

    return asyncio.run(ask())


def reserve_for_other(namespace: Namespace) -> None:
    """Reserves a slice for another user."""
    request = pb.ReserveSlicesRequest(instance_type=KIND, count=1, user=OTHER, ends=-3600.0)
    call(namespace, "ReserveSlices", request)


def users(namespace: Namespace) -> dict[str, str]:
    """Returns the user of each tenant."""
    status = call(namespace, "GetStatus", pb.GetStatusRequest())
    return {tenant.name: tenant.user for tenant in status.tenants}


def inputs_of(service: DeployedService, name: str, user: str) -> ProxyJobInputs:
    """Returns the inputs of a proxy that says that it is another user's."""
    namespace = service.namespace.name
    return job_inputs(
        name=name,
        namespace=namespace,
        session=f"{name}-0000",
        service_address=service.address,
        service_name=service.name,
        image=OUR_PROXY_IMAGE,
        virtual_slices=(KIND,),
        user=OTHER,
        identity=IdentityInputs(audience=f"{service.name}.{namespace}.sps.dev", user=user),
    )


def a_submitted_job_is_its_creators(namespace: Namespace, user: str, workdir: Path) -> None:
    """Submits a job, which computes as this user, and ends."""
    job = submit(
        ["python3", "-c", JOB], workdir=workdir, context="testbed", namespace=namespace.name
    )
    wait_until("the program", lambda: "4" in job.logs())
    assert users(namespace)[job.name] == user
    assert job.cancel().state == "cancelled"
    namespace.delete(JOBS, job.name)
    wait_until("the end of the tenant", lambda: job.name not in users(namespace))


def shared_claim(name: str) -> dict[str, Any]:
    """Returns the claim that an operator creates for compiled programs."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}}
    return {"metadata": {"name": name}, "spec": spec}


def programs(namespace: Namespace, connection: str, count: str) -> float:
    """Returns a counter of a proxy's cache of compiled programs; -1: it has reported none."""
    place = ("--context=testbed", f"--namespace={namespace.name}")
    found = text_to_families(sps("status", connection, "--openmetrics", *place).stdout)
    named = {family.name: family for family in found}
    name = f"sps_proxy_compile_cache_{count}"
    return value(named, f"{name}_total", connection=connection) if name in named else -1.0


def check_programs_are_private(namespace: Namespace, proxy: Object, claim: str) -> None:
    """Asserts that the API server refuses pods that would mount the programs of others."""
    [own] = [one for one in proxy["spec"]["volumes"] if "persistentVolumeClaim" in one]
    assert own["persistentVolumeClaim"]["claimName"] == claim
    mounts = proxy["spec"]["containers"][0]["volumeMounts"]
    [folder] = [one["subPath"] for one in mounts if one["name"] == own["name"]]
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    thief = namespace.user("thief", rules=[rule])
    api = namespace.testbed.api_of(thief)

    def create(user: str, *, group: int = 1000, **mount: str) -> None:
        mounts = [{"name": "v", "mountPath": "/v", **mount}]
        spec = {
            "containers": [{"name": "c", "image": "testbed/none:1", "volumeMounts": mounts}],
            "securityContext": {"fsGroup": group, "fsGroupChangePolicy": "OnRootMismatch"},
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        }
        annotations = {ANNOTATION_VERIFIED_USER: user} if user else {}
        metadata = {"name": "thief", "annotations": annotations}
        path = f"{namespace.path('pods')}?dryRun=All"
        api.create(path, {"metadata": metadata, "spec": spec})

    theirs = f"user-{thief.name}"
    create(thief.name, subPath=theirs)
    for user, mount in (
        ("", {"subPath": theirs}),
        (thief.name, {}),
        (thief.name, {"subPath": folder}),
        (thief.name, {"subPath": f"{theirs}/compiled"}),
    ):
        with pytest.raises(ApiRefused, match="may mount only the folder"):
            create(user, **mount)
    with pytest.raises(ApiRefused, match="must have fsGroup 1000"):
        create(thief.name, group=2000, subPath=theirs)


def test_a_tenant_is_who_the_api_server_says(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepare_verification(namespace)
    namespace.add_nodes({KIND: 2}, cpu_nodes=0)
    claim = programs_claim("pathways")
    namespace.create("persistentvolumeclaims", shared_claim(claim))
    service = deploy_service(
        namespace,
        {KIND: 2},
        verify_users=True,
        compiled_programs=True,
        server_args=("--proxy_counters_s=0.2",),
    )
    user = namespace.user("tenant")
    monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig_of("tenant")))
    with client(namespace, HOLDER) as first:
        name = first.expect("holds")["name"]
        wait_until("programs to be kept", lambda: programs(namespace, name, "stored") > 0)
        assert programs(namespace, name, "hits") == 0
        first.tell("leave")
        assert first.wait() == 0
    with client(namespace, HOLDER) as holder:
        name = holder.expect("holds")["name"]
        assert users(namespace) == {name: user.name}
        # It has compiled nothing: each program was there.
        wait_until("programs to be loaded", lambda: programs(namespace, name, "hits") > 0)
        assert programs(namespace, name, "misses") == 0
        [pod] = namespace.items("pods", labelSelector=f"batch.kubernetes.io/job-name={name}")
        check_programs_are_private(namespace, pod, claim)
        a_submitted_job_is_its_creators(namespace, user.name, tmp_path)

        reserve_for_other(namespace)

        # A Job that names another user does not come to be.
        api = namespace.testbed.api_of(user)
        with pytest.raises(ApiRefused, match="must be your user name"):
            api.create(namespace.path(JOBS), proxy_job(inputs_of(service, "liar", OTHER)))
        # Nor does one that a controller made from somebody's template.
        owned = proxy_job(inputs_of(service, "owned", user.name))
        owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "u"}
        owned["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        with pytest.raises(ApiRefused, match="no controller may own the object"):
            api.create(namespace.path(JOBS), owned)
        # One whose proxy names another user is its creator's, and gets nothing of that user's.
        liar = inputs_of(service, "liar", user.name)
        job = api.create(namespace.path(JOBS), proxy_job(liar))
        secret = token_secret(liar, "token", job["metadata"]["uid"])
        api.create(namespace.path("secrets"), secret)

        # A client that does not know that the service verifies users, like one of an older release.
        jobset = namespace.path(JOBSETS, service.name)
        unsaid = {"metadata": {"annotations": {ANNOTATION_AUDIENCE: None}}}
        namespace.testbed.api.request(
            "PATCH", jobset, body=unsaid, content_type="application/merge-patch+json"
        )
        with client(namespace, REFUSED) as older:
            refused = older.expect("refused")
        assert "verifies users" in refused["message"]
        assert "shows no token" in refused["message"]
        [pod] = namespace.items("pods", labelSelector="batch.kubernetes.io/job-name=liar")
        named = pod["metadata"]["name"]
        namespace.wait_for_pod(named, lambda p: p["status"]["phase"] == "Failed")
        assert "reserved for user bob" in namespace.log(named)
        # Each other request was refused, so that nobody else has ever held a slice.
        assert users(namespace) == {name: user.name}
        usage = call(namespace, "GetUsage", pb.GetUsageRequest(by="user"))
        assert {row.name for row in usage.rows if row.slice_s} == {user.name}
        holder.tell("leave")
        assert holder.wait() == 0
    namespace.delete(JOBS, "liar")
    nothing_left(namespace)
