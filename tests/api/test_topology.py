"""Instance types: how they are written, and what follows from them."""

from __future__ import annotations

import pickle

import pytest

from shared_pathways_service.api.topology import FAMILIES, InstanceType
from shared_pathways_service.errors import InvalidRequestError


def test_an_instance_type_is_written_as_it_was_read() -> None:
    kind = InstanceType.parse("tpuv6e:2x4")
    assert (kind.family, kind.dims, kind.chips) == ("tpuv6e", (2, 4), 8)
    assert str(kind) == "tpuv6e:2x4"
    assert InstanceType.parse(str(kind)) == kind
    assert pickle.loads(pickle.dumps(kind)) == kind


@pytest.mark.parametrize(
    ("text", "hosts", "chips_per_host"),
    [
        ("tpuv6e:1x1", 1, 1),
        ("tpuv6e:2x2", 1, 4),
        ("tpuv6e:2x4", 2, 4),
        ("tpuv6e1t:2x4", 1, 8),
        ("tpuv5e1t:4x4", 2, 8),
        ("tpuv5e:16x16", 64, 4),
        ("tpuv4:2x2x1", 1, 4),
        ("tpuv5:2x2x4", 4, 4),
        ("tpu7x:4x4x4", 16, 4),
    ],
)
def test_hosts_are_chips_by_chips_a_host_and_at_least_one(
    text: str, hosts: int, chips_per_host: int
) -> None:
    kind = InstanceType.parse(text)
    assert (kind.hosts, kind.chips_per_host) == (hosts, chips_per_host)


@pytest.mark.parametrize(
    ("text", "device_kind", "label", "machine"),
    [
        ("tpuv4:2x2x1", "TPU v4", "tpu-v4-podslice", "ct4p-hightpu-4t"),
        ("tpuv5:2x2x1", "TPU v5p", "tpu-v5p-slice", "ct5p-hightpu-4t"),
        ("tpuv5e:2x2", "TPU v5 lite", "tpu-v5-lite-podslice", "ct5lp-hightpu-4t"),
        ("tpuv5e1t:2x4", "TPU v5 lite", "tpu-v5-lite-podslice", "ct5lp-hightpu-8t"),
        ("tpuv6e:2x2", "TPU v6 lite", "tpu-v6e-slice", "ct6e-standard-4t"),
        ("tpuv6e1t:2x4", "TPU v6 lite", "tpu-v6e-slice", "ct6e-standard-8t"),
        ("tpu7x:2x2x1", "TPU7x", "tpu7x", "tpu7x-standard-4t"),
    ],
)
def test_each_family_has_the_names_of_the_cloud_and_of_jax(
    text: str, device_kind: str, label: str, machine: str
) -> None:
    kind = InstanceType.parse(text)
    assert kind.device_kind == device_kind
    assert kind.accelerator_label == label
    assert kind.machine_type == machine


def test_coordinates_run_along_x_first() -> None:
    assert InstanceType.parse("tpuv6e:2x2").chip_coords() == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 0),
        (1, 1, 0),
    ]
    cube = InstanceType.parse("tpuv4:2x3x4").chip_coords()
    assert len(set(cube)) == 24
    assert cube[:3] == [(0, 0, 0), (1, 0, 0), (0, 1, 0)]
    assert cube[-1] == (1, 2, 3)


def test_types_are_keys_and_have_an_order() -> None:
    kinds = [InstanceType.parse(t) for t in ("tpuv6e:4x4", "tpuv5e:2x2", "tpuv6e:2x2")]
    assert sorted(kinds) == [kinds[1], kinds[2], kinds[0]]
    assert {kinds[0]: 1}[InstanceType.parse("tpuv6e:4x4")] == 1


@pytest.mark.parametrize(
    "text",
    [
        "tpuv6e:0x2",
        "tpuv6e:2y2",
        "tpuv6e:2x2x2x2",
        "tpuv6e:2x2x2",
        "tpuv4:2x2",
        "tpuv6e:02x2",
        "tpuv6e:-2x2",
        "tpuv6e:2x",
        "tpuv6e:",
        "tpuv6e",
        "tpuv6e 2x2",
        "TPUV6E:2x2",
        "tpuv6e:2x2\n",
        "tpuv6e:٢x٢",
        "tpuv6e:99999x99999",
        "tpuv6e:" + "9" * 5000 + "x1",
        "",
        None,
        4,
        ("tpuv6e", (2, 2)),
    ],
)
def test_what_is_no_instance_type_is_refused_by_name(text: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        InstanceType.parse(text, field="expected_tpu_instances")
    assert caught.value.field == "expected_tpu_instances"
    assert caught.value.value == text


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        InstanceType.parse("tpuv9:2x2")
    assert all(family in str(caught.value) for family in FAMILIES)
