"""PathwaysJobs, and parts of the JobSets made from them."""

from __future__ import annotations

import copy
from typing import Any

GOOGLES = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/"
OURS = "r.io/shared-pathways-service/"
MAIN = {"name": "main", "image": "python:3.13", "command": ["python", "train.py"]}
#: The parts by what `customComponents` calls them: where their container is.
PLACES = {
    "pathways_server": ("pathways-head", "pathways-rm"),
    "proxy_server": ("pathways-head", "pathways-proxy"),
    "worker": ("worker", "pathways-worker"),
    "colocated_python_sidecar": ("worker", "colocated-python-sidecar"),
}
ALL_OURS = [
    {"componentType": "pathways_server", "image": f"{OURS}server:1"},
    {"componentType": "worker", "image": f"{OURS}server:1"},
    {"componentType": "proxy_server", "image": f"{OURS}proxy_server:1"},
]


def manifest(**changes: Any) -> dict[str, Any]:
    """The job of the examples, with other fields: ``workers__topology="2x4"``; None: left out."""
    made: dict[str, Any] = {
        "apiVersion": "pathways-job.pathways.domain/v1",
        "kind": "PathwaysJob",
        "metadata": {"name": "train", "namespace": "team-a"},
        "spec": {
            "pathwaysDir": "gs://bucket/tmp",
            "workers": [{"type": "ct5lp-hightpu-4t", "topology": "4x8", "numSlices": 3}],
            "controller": {
                "deploymentMode": "default",
                "template": {"spec": {"containers": [copy.deepcopy(MAIN)]}},
            },
        },
    }
    spec = made["spec"]
    for name, value in changes.items():
        part, _, field = name.partition("__")
        owner: Any = {"spec": spec, "top": made, "metadata": made["metadata"]}.get(part)
        if owner is None:
            owner = spec["workers"][0] if part == "workers" else spec[part]
        if value is None:
            owner.pop(field, None)
        else:
            owner[field] = value
    return made


def job(jobset: dict[str, Any], name: str) -> dict[str, Any]:
    jobs: list[dict[str, Any]] = jobset["spec"]["replicatedJobs"]
    [found] = [one for one in jobs if one["name"] == name]
    return found


def pod(jobset: dict[str, Any], name: str) -> dict[str, Any]:
    spec: dict[str, Any] = job(jobset, name)["template"]["spec"]["template"]["spec"]
    return spec


def container(jobset: dict[str, Any], name: str, of: str) -> dict[str, Any]:
    spec = pod(jobset, of)
    both = [*spec.get("initContainers", ()), *spec["containers"]]
    [found] = [one for one in both if one["name"] == name]
    only: dict[str, Any] = found
    return only


def part(jobset: dict[str, Any], name: str) -> dict[str, Any]:
    of, known = PLACES[name]
    return container(jobset, known, of)


def variables(found: dict[str, Any]) -> dict[str, str]:
    """A container's variables: their values, or the field that they are taken from."""

    def value(variable: dict[str, Any]) -> str:
        source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        return str(variable.get("value", source))

    assert len({v["name"] for v in found["env"]}) == len(found["env"])
    return {v["name"]: value(v) for v in found["env"]}


def ports(found: dict[str, Any]) -> list[int]:
    return [port["containerPort"] for port in found["ports"]]
