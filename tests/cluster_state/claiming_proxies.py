"""Pods of proxies that claim slices of a service."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.cluster_state.services import Service, read_service
from shared_pathways_service.manifests.names import ANNOTATION_HOST, LABEL_USER
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from tests.cluster_state import objects
from tests.cluster_state.objects import Object

V6, V5 = "tpuv6e:2x2", "tpuv5:2x2x1"


def service(slices: int = 3) -> Service:
    found = read_service(service_jobset(ServiceInputs(name="pw", instances={V6: slices})))
    assert found is not None
    return found


def proxy(name: str, *kinds: str, at: str = "00", elastic: int = 0, **more: Any) -> Object:
    """A proxy's pod that began to run so many seconds after the full minute."""
    made = objects.pod(name, labels={"job-name": name, LABEL_USER: name}, **more)
    made["metadata"]["annotations"] = {ANNOTATION_HOST: "laptop"}
    began = {"running": {"startedAt": f"2026-01-01T00:00:{at}Z"}}
    made["status"]["containerStatuses"] = [{"name": "pathways-proxy", "state": began}]
    flags = [
        f"--resource_manager_address={service().address}",
        f"--virtual_slices={','.join(kinds)}",
    ]
    if elastic:
        flags.append(f"--num_elastic_slices={elastic}")
    made["spec"]["containers"] = [{"name": "pathways-proxy", "args": flags}]
    return made
