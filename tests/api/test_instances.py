"""Instance types of requests, in Python and on the command line."""

from __future__ import annotations

import pytest

from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError
from tests.api.building import SMALL, build, refusal


def test_virtual_slices_follow_counts_in_the_given_order() -> None:
    request = build(expected_tpu_instances={"tpuv6e:2x2": 2, "tpuv4:2x2x1": 1})
    assert request.tenant.virtual_slices == (SMALL, SMALL, InstanceType.parse("tpuv4:2x2x1"))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"tpuv6e:2x2": 0},
        {"tpuv6e:2x2": -1},
        {"tpuv6e:2x2": 1.5},
        {"tpuv6e:2x2": True},
        {"tpuv6e:2x2": "2"},
        {"tpuv6e:2x2": None},
        {"tpuv6e:2x2": 10**12},
        {"tpuv6e:0x2": 1},
        {"tpuv6e:2y2": 1},
        {"tpuv6e:2x2x2x2": 1},
        {"gpu:2x2": 1},
        {4: 1},
        ["tpuv6e:2x2"],
        "tpuv6e:2x2",
        2,
    ],
)
def test_bad_instances_are_refused_by_name(value: object) -> None:
    assert refusal(expected_tpu_instances=value).field == "expected_tpu_instances"


def test_instances_on_the_command_line() -> None:
    assert parse_instance_texts(["tpuv6e:2x2=2,tpuv4:2x2x1=1", "tpuv5e:2x2=3"]) == {
        "tpuv6e:2x2": 2,
        "tpuv4:2x2x1": 1,
        "tpuv5e:2x2": 3,
    }


@pytest.mark.parametrize(
    "texts",
    [
        ["tpuv6e:2x2"],
        ["tpuv6e:2x2="],
        ["tpuv6e:2x2=0"],
        ["tpuv6e:2x2=-1"],
        ["tpuv6e:2x2=1.5"],
        ["tpuv6e:2x2=2,tpuv6e:2x2=1"],
        ["tpuv6e:2x2=1", "tpuv6e:2x2=1"],
        ["tpuv6e:0x2=1"],
        ["tpuv6e:2x2=1,"],
        [""],
        [],
    ],
)
def test_bad_instances_on_the_command_line_name_the_option(texts: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_instance_texts(texts, field="--slices")
    assert caught.value.field == "--slices"
