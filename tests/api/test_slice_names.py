"""GKE's, upstream's and xpk's names of instance types."""

from __future__ import annotations

import pytest

from harness.session_requests import session_request
from shared_pathways_service.api.instances import parse_instance_counts, parse_instance_texts
from shared_pathways_service.api.slice_names import named_type
from shared_pathways_service.api.topology import FAMILY_NAMES, InstanceType
from shared_pathways_service.errors import InvalidRequestError

#: As xpk's table has them: name, type, hosts, chips per host, node labels.
XPK = [
    ("v6e-1", "tpuv6e:1x1", 1, 1, "tpu-v6e-slice"),
    ("v6e-4", "tpuv6e:2x2", 1, 4, "tpu-v6e-slice"),
    ("v6e-8", "tpuv6e:2x4", 2, 4, "tpu-v6e-slice"),
    ("v6e-16", "tpuv6e:4x4", 4, 4, "tpu-v6e-slice"),
    ("v6e-256", "tpuv6e:16x16", 64, 4, "tpu-v6e-slice"),
    ("v6e-4x8", "tpuv6e:4x8", 8, 4, "tpu-v6e-slice"),
    ("v5litepod-8", "tpuv5e:2x4", 2, 4, "tpu-v5-lite-podslice"),
    ("v5litepod-16", "tpuv5e:4x4", 4, 4, "tpu-v5-lite-podslice"),
    ("v5litepod-256", "tpuv5e:16x16", 64, 4, "tpu-v5-lite-podslice"),
    ("v5p-8", "tpuv5:2x2x1", 1, 4, "tpu-v5p-slice"),
    ("v5p-16", "tpuv5:2x2x2", 2, 4, "tpu-v5p-slice"),
    ("v5p-64", "tpuv5:2x4x4", 8, 4, "tpu-v5p-slice"),
    ("v5p-128", "tpuv5:4x4x4", 16, 4, "tpu-v5p-slice"),
    ("v5p-384", "tpuv5:4x4x12", 48, 4, "tpu-v5p-slice"),
    ("v5p-1152", "tpuv5:4x12x12", 144, 4, "tpu-v5p-slice"),
    ("v5p-3072", "tpuv5:8x12x16", 384, 4, "tpu-v5p-slice"),
    ("v5p-8192", "tpuv5:16x16x16", 1024, 4, "tpu-v5p-slice"),
    ("v5p-12288", "tpuv5:16x16x24", 1536, 4, "tpu-v5p-slice"),
    ("tpu7x-8", "tpu7x:2x2x1", 1, 4, "tpu7x"),
    ("tpu7x-128", "tpu7x:4x4x4", 16, 4, "tpu7x"),
    ("tpu7x-512", "tpu7x:4x8x8", 64, 4, "tpu7x"),
    ("tpu7x-2x2x2", "tpu7x:2x2x2", 2, 4, "tpu7x"),
    ("v4-8", "tpuv4:2x2x1", 1, 4, "tpu-v4-podslice"),
    ("v4-512", "tpuv4:4x8x8", 64, 4, "tpu-v4-podslice"),
]


@pytest.mark.parametrize(("name", "kind", "hosts", "chips", "label"), XPK)
def test_xpks_names(name: str, kind: str, hosts: int, chips: int, label: str) -> None:
    found = named_type(name)
    assert str(found) == kind
    assert (found.hosts, found.chips_per_host) == (hosts, chips)
    assert found.accelerator_label == label


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ct6e-standard-4t:4x4", "tpuv6e:4x4"),
        ("ct6e-standard-8t:2x4", "tpuv6e1t:2x4"),
        ("ct5lp-hightpu-4t:2x4", "tpuv5e:2x4"),
        ("ct5p-hightpu-4t:2x2x1", "tpuv5:2x2x1"),
        ("tpu7x-standard-4t:2x2x1", "tpu7x:2x2x1"),
        ("v6e:2x2", "tpuv6e:2x2"),
        ("v5e:2x2", "tpuv5e:2x2"),
        ("v5p:2x2x1", "tpuv5:2x2x1"),
        ("tpu7x:2x2x1", "tpu7x:2x2x1"),
        ("tpuv5lite:4x4", "tpuv5e:4x4"),
        ("tpuv6e:2x2", "tpuv6e:2x2"),
    ],
)
def test_machine_types_generations_and_families_with_a_topology(name: str, kind: str) -> None:
    assert str(named_type(name)) == kind


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v6e-3", "TensorCores"),
        ("v6e-512", "TensorCores"),
        ("v5p-7", "TensorCores"),
        ("v5p-12", "TensorCores"),
        ("v5p-12800", "tpuv5:TOPOLOGY"),
        ("v9-16", "v5litepod"),
        ("v6e", "e.g. tpuv6e:4x4"),
        ("v6e-", "e.g. tpuv6e:4x4"),
        ("", "e.g. tpuv6e:4x4"),
        ("ct6e-standard-4t", "e.g. tpuv6e:4x4"),
        ("n2-standard-4:2x2", "FAMILY:AxB"),
        ("v9:2x2", "a family out of"),
        ("v6e:2x2x2", "AxB"),
        (16, "FAMILY:AxB"),
    ],
)
def test_other_names_are_refused_with_what_would_be_right(name: object, expected: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        named_type(name, field="--slices")
    assert (caught.value.field, caught.value.value) == ("--slices", name)
    assert expected in caught.value.expected


def test_every_name_of_a_family_leads_to_it() -> None:
    for name, family in FAMILY_NAMES.items():
        shape = "4x4x4" if InstanceType(family, ()).dimensions == 3 else "4x4"
        assert named_type(f"{name}:{shape}").family == family


def test_connect_and_the_command_line_read_them() -> None:
    kind = named_type("v6e-16")
    counts = {"v6e-16": 1, "ct6e-standard-4t:2x2": 1}
    asked = session_request(expected_tpu_instances=counts)
    assert asked.tenant.virtual_slices == (kind, named_type("v6e-4"))
    texts = ["ct6e-standard-4t:4x4=1,v5p-8=2"]
    assert parse_instance_texts(texts) == {"tpuv6e:4x4": 1, "tpuv5:2x2x1": 2}


def test_one_type_under_two_names_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="tpuv6e:4x4 once"):
        parse_instance_counts({"v6e-16": 1, "ct6e-standard-4t:4x4": 1})
