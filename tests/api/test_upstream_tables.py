"""The table of TPUs beside upstream's tables, as the installed pathwaysutils has them."""

from __future__ import annotations

import ast
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from harness.upstream import experimental, service_file
from shared_pathways_service.api.slice_names import named_type
from shared_pathways_service.api.topology import FAMILIES, InstanceType


@pytest.fixture(scope="module")
def tpu_specs() -> ModuleType:
    """Upstream's module, read from its file: its package would import JAX."""
    file = service_file("tpu_specs.py")
    spec = importlib.util.spec_from_file_location("upstream_tpu_specs", file)
    assert spec is not None
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look themselves up there.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


def builders_table(name: str) -> dict[str, str]:
    """Returns a table of upstream's JobSet builder, which needs the package `kubernetes`."""
    tree = ast.parse((experimental() / "gke" / "jobset.py").read_text())
    [value] = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    table: dict[str, str] = ast.literal_eval(value)
    return table


@pytest.mark.parametrize("tpu_type", ["v5e", "v5p", "v6e", "tpu7x"])
def test_labels_machines_and_hosts_are_upstreams(tpu_specs: Any, tpu_type: str) -> None:
    config = tpu_specs.get_tpu_config(tpu_type)
    flat = tpu_type in ("v5e", "v6e")
    topologies = ("2x2", "2x4", "4x8", "16x16") if flat else ("2x2x1", "2x2x4", "4x4x8")
    for topology in topologies:
        kind = named_type(f"{tpu_type}:{topology}")
        assert str(kind) == f"{config.instance_prefix}:{topology}"
        assert kind.accelerator_label == config.accelerator_label
        assert kind.machine_type == config.machine_type
        assert kind.chips_per_host == config.chips_per_vm
        vms = tpu_specs.calculate_vms_per_slice(topology, config.chips_per_vm)
        assert kind.hosts == vms


def test_every_name_of_upstreams_builder_means_the_same() -> None:
    families = builders_table("MACHINE_TYPE_TO_TPU_VERSION_MAP")
    labels = builders_table("MACHINE_TYPE_TO_GKE_ACCELERATOR_TYPE_MAP")
    assert set(families.values()) == set(FAMILIES)
    for name, family in families.items():
        shape = "2x4" if InstanceType(family, ()).dimensions == 2 else "2x2x4"
        kind = named_type(f"{name}:{shape}")
        assert kind.family == family
        assert kind.accelerator_label == labels[name]
