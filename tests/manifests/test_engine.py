"""A service whose tenants' programs run in executors, in its manifests."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from harness.session_requests import job_inputs
from shared_pathways_service.cluster_state.service_reading import read_inputs
from shared_pathways_service.cluster_state.services import read_service
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.manifests.proxy_inputs import IdentityInputs
from shared_pathways_service.manifests.proxy_job import proxy_job
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from shared_pathways_service.manifests.verified_users.program_parts import programs_claim
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.worker.flags import WorkerOptions

LOCAL = ServiceInputs(
    name="pw",
    instances={"tpuv6e:4x4": 2},
    image="r.io/shared-pathways-service/server:0.1.0",
)
DISTRIBUTED = dataclasses.replace(LOCAL, engine="distributed")
PROXY = job_inputs(
    name="isc-proxy",
    namespace="default",
    session="00000000-0000-0000-0000-000000000000",
    service_address="pw:29001",
    image="r.io/shared-pathways-service/proxy_server:0.1.0",
    virtual_slices=("tpuv6e:4x4",),
    identity=IdentityInputs(audience="pw.default.sps.dev", user="ada"),
    programs_claim=programs_claim("pw"),
)


def variables(inputs: ServiceInputs) -> list[dict[str, Any]]:
    """Returns the variables of the head, and of the workers."""
    found = []
    for job in service_jobset(inputs)["spec"]["replicatedJobs"]:
        [container] = job["template"]["spec"]["template"]["spec"]["containers"]
        found.append({one["name"]: one.get("value", one) for one in container["env"]})
    return found


def test_the_service_and_its_workers_know_the_engine() -> None:
    head, worker = variables(DISTRIBUTED)
    assert head["SPS_ENGINE"] == "distributed"
    field = worker["SPS_EXECUTOR_ADDRESS"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "status.podIP"
    for found in variables(LOCAL):
        assert not found.keys() & {"SPS_ENGINE", "SPS_EXECUTOR_ADDRESS"}
    options = parse_flags(
        WorkerOptions,
        ["--resource_manager_address=pw:29001"],
        {"SPS_BIND_ADDRESS": "0.0.0.0", "SPS_EXECUTOR_ADDRESS": "10.0.0.7"},
    )
    assert options.executor_address == "10.0.0.7"


ALLOWS_PYTHON = dataclasses.replace(DISTRIBUTED, allow_colocated_python=True)


def test_workers_run_python_only_where_the_operator_allows_it() -> None:
    required = ["--resource_manager_address=pw:29001"]
    for inputs in (DISTRIBUTED, ALLOWS_PYTHON):
        _, worker = variables(inputs)
        environ = {name: value for name, value in worker.items() if isinstance(value, str)}
        options = parse_flags(WorkerOptions, required, environ)
        assert options.colocated_python == inputs.allow_colocated_python
    with pytest.raises(InvalidRequestError, match="engine distributed") as raised:
        dataclasses.replace(LOCAL, allow_colocated_python=True)
    assert raised.value.field == "allow_colocated_python"


@pytest.mark.parametrize("inputs", [LOCAL, DISTRIBUTED, ALLOWS_PYTHON])
def test_the_engine_is_read_from_the_jobset(inputs: ServiceInputs) -> None:
    jobset = service_jobset(inputs)
    service = read_service(jobset)
    assert service is not None
    assert service.engine == inputs.engine
    assert service.allows_python == inputs.allow_colocated_python
    assert read_inputs(jobset, service) == inputs


@pytest.mark.parametrize("engine", ["local", "distributed"])
def test_a_proxy_computes_where_the_service_says(engine: str) -> None:
    inputs = dataclasses.replace(PROXY, engine=engine)
    [container] = proxy_job(inputs)["spec"]["template"]["spec"]["containers"]
    environ = {one["name"]: one["value"] for one in container["env"]}
    options = parse_flags(ProxyServerOptions, container["args"], environ)
    assert options.places_executors == (engine == "distributed")
    # (Executors do not keep compiled programs.)
    assert bool(options.compile_cache_dir) == (engine == "local")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"engine": "other"}, "engine"),
        ({"image": "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/server:latest"}, "engine"),
        ({"verify_users": True, "compiled_programs": True}, "compiled_programs"),
    ],
)
def test_what_does_not_fit_the_engine_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        dataclasses.replace(DISTRIBUTED, **fields)
    assert raised.value.field == field
