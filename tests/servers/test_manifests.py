"""The servers take what the manifests give the real images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.resource_manager.flags import ResourceManagerOptions
from shared_pathways_service.servers.worker.flags import WorkerOptions

YAMLS = Path(__file__).parents[2] / "yamls"
#: What Kubernetes puts in.
FILLED_IN = {"$(PATHWAYS_HEAD)": "pathways-cluster-pathways-head-0-0"}


def _containers(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield from node.get("containers", ())
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from _containers(child)


def _arguments(file: str, container: str) -> list[str]:
    text = (YAMLS / file).read_text()
    for name, value in FILLED_IN.items():
        text = text.replace(name, value)
    [found] = [c for c in _containers(yaml.safe_load(text)) if c["name"] == container]
    return [str(argument) for argument in found["args"]]


def test_resource_manager_takes_the_services_manifest() -> None:
    arguments = _arguments("pathways-service.yaml", "pathways-rm")
    options = parse_flags(ResourceManagerOptions, arguments, {"TPU_SKIP_MDS_QUERY": "true"})
    assert options.server_port == 29001
    assert [str(t) for t in options.instance_type] == ["tpuv6e:2x2"]
    assert list(options.instance_count) == [2]


def test_worker_takes_the_services_manifest() -> None:
    arguments = _arguments("pathways-service.yaml", "pathways-worker")
    options = parse_flags(WorkerOptions, arguments, {"MEGASCALE_SLICE_ID": "1"})
    assert options.server_port == 29005
    assert options.slice_id == "slice-1"
    assert options.resource_manager_address == "pathways-cluster-pathways-head-0-0:29001"


def test_proxy_takes_its_manifest() -> None:
    arguments = _arguments("isc-proxy.yaml", "pathways-proxy")
    options = parse_flags(ProxyServerOptions, arguments, {})
    assert options.server_port == 29000
    assert [str(t) for t in options.instance_types()] == ["tpuv6e:2x2"] * 2
    assert options.resource_manager_address.endswith(".pathways-cluster:29001")
