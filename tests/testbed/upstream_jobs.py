"""Proxies as upstream's manifests have them."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.testing.testbed import Namespace

PROXY_IMAGE = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/proxy_server:latest"


def running_pod(namespace: Namespace, job_name: str) -> str:
    """Waits until a Job's pod runs; returns its name."""
    [pod] = namespace.wait_until(
        "pods",
        lambda pods: [p for p in pods if p["status"].get("phase") == "Running"],
        what="running proxy",
        labelSelector=f"job-name={job_name}",
    )
    name: str = pod["metadata"]["name"]
    return name


def upstream_job(service_address: str) -> dict[str, Any]:
    """Arguments and environment of a proxy in the public manifests of Pathways on Cloud."""
    container = {
        "name": "pathways-proxy",
        "image": PROXY_IMAGE,
        "args": [
            "--server_port=29000",
            f"--resource_manager_address={service_address}",
            "--gcs_scratch_location=gs://bucket",
            "--virtual_slices=tpuv6e:2x2,tpuv6e:2x2",
        ],
        "env": [{"name": "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "value": "true"}],
        "ports": [{"containerPort": 29000}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "isc-proxy-upstream"},
        "spec": {
            "backoffLimit": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }
