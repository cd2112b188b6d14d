"""Inputs of proxy Jobs, and parts of the Jobs made from them."""

from __future__ import annotations

from typing import Any

from harness.session_requests import job_inputs, with_fields
from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.manifests.proxy_inputs import ProxyJobInputs
from shared_pathways_service.manifests.proxy_job import proxy_job

GOOGLES = job_inputs(
    name="isc-proxy-ada-x7k2p",
    namespace="team-a",
    session="6f9c1d0e-0000-4000-8000-000000000000",
    service_name="pw",
    service_address="pw-pathways-head-0-0.pw:29001",
    virtual_slices=("tpuv6e:2x2", "tpuv6e:2x2"),
    image="us-docker.pkg.dev/cloud-tpu-v2-images/pathways/proxy_server:jax-0.10.2",
    gcs_bucket="gs://bucket/path",
    user="Ada Lovelace",
    host="ada's laptop",
    created_by_pid=42,
)


OURS = with_fields(
    GOOGLES, image="r.io/x/shared-pathways-service/proxy_server:0.1.0", team="research"
)


def pod(inputs: ProxyJobInputs) -> dict[str, Any]:
    spec: dict[str, Any] = proxy_job(inputs)["spec"]["template"]["spec"]
    return spec


def container(inputs: ProxyJobInputs) -> dict[str, Any]:
    [only] = pod(inputs)["containers"]
    found: dict[str, Any] = only
    return found


def variables(inputs: ProxyJobInputs) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container(inputs)["env"]}


def with_options(inputs: ProxyJobInputs, *options: str) -> ProxyJobInputs:
    return with_fields(inputs, options=ProxyOptions.from_list(options))
