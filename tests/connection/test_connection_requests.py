"""Bad input: refused with the field's name, before anything was started."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service import InvalidRequestError, isc_pathways

TYPE = "tpuv6e:2x2"


def instances(value: object) -> dict[str, Any]:
    return {"expected_tpu_instances": value}


BAD: list[tuple[str, dict[str, Any]]] = [
    ("expected_tpu_instances", instances({})),
    *[
        ("expected_tpu_instances", instances({TYPE: count}))
        for count in (0, -1, 1.5, True, "2", None)
    ],
    *[
        ("expected_tpu_instances", instances({f"tpuv6e:{topology}": 1}))
        for topology in ("0x2", "2y2", "2x2x2x2", "2", "")
    ],
    ("expected_tpu_instances", instances({"tpuv99:2x2": 1})),
    ("expected_tpu_instances", instances([TYPE])),
    ("pathways_service", {"pathways_service": "head"}),
    ("pathways_service", {"pathways_service": "head:0"}),
    ("pathways_service", {"pathways_service": "head:70000"}),
    ("proxy_job_name", {"proxy_job_name": "No_Label"}),
    ("proxy_job_name", {"proxy_job_name": "x" * 64}),
    ("proxy_options", {"proxy_options": ["nocolon"]}),
    ("proxy_options", {"proxy_options": [":1"]}),
    ("proxy_options", {"proxy_options": ["xla_flags:nonsense"]}),
    ("timeout", {"timeout": -1}),
    ("queue_timeout", {"queue_timeout": -1}),
    ("max_lifetime", {"max_lifetime": -1}),
    ("gcs_bucket", {"gcs_bucket": "s3://bucket"}),
    ("wait", {"wait": "forever"}),
    ("elastic_slices", {**instances({TYPE: 2}), "elastic_slices": 2}),
    ("priority", {"priority": "high"}),
    ("local_port", {"local_port": 70000}),
    ("on_event", {"on_event": 3}),
    ("project", {"project": "p"}),
]


@pytest.mark.parametrize(("field", "keywords"), BAD, ids=[f"{f}={k}" for f, k in BAD])
def test_bad_input_is_refused_before_anything_is_started(
    own_directories: Path, field: str, keywords: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        isc_pathways.connect(**keywords)
    assert caught.value.field.split("[")[0] == field
    assert caught.value.expected
    assert list(own_directories.iterdir()) == []


def test_a_valid_request_starts_nothing_yet(own_directories: Path) -> None:
    connection = isc_pathways.connect(expected_tpu_instances={TYPE: 2})
    assert connection.status().state == "new"
    assert connection.proxy_job_name.startswith("isc-proxy-")
    assert (connection.address, connection.slices, connection.total_chips) == ("", (), 8)
    connection.close()
    assert list(own_directories.iterdir()) == []


def test_upstreams_attributes_before_entry(own_directories: Path) -> None:
    it = isc_pathways.connect(
        expected_tpu_instances={TYPE: 2},
        cluster="c",
        project="p",
        region="r",
        gcs_bucket="my-bucket",
        pathways_service="head:29001",
        proxy_options=["sidecar:true"],
    )
    asked = (it.cluster, it.project, it.region, it.bucket, it.pathways_service)
    assert asked == ("c", "p", "r", "gs://my-bucket", "head:29001")
    assert (it.start_time, it.proxy_pod_name, it.total_chips) == (None, "", 8)
    assert it.expected_tpu_instances == {TYPE: 2}
    assert it.proxy_job_name.startswith("isc-proxy-")
    assert it.proxy_server_image == isc_pathways.DEFAULT_PROXY_IMAGE
    assert it.proxy_options.sidecar
    assert not it.metrics_collector.is_collecting
    it.metrics_collector.record_capacity_in_use(it.total_chips)
    assert list(own_directories.iterdir()) == []


def test_upstreams_attributes_are_copies_and_empty_where_nothing_is_named() -> None:
    it = isc_pathways.connect(expected_tpu_instances={TYPE: 2})
    assert it.expected_tpu_instances == {TYPE: 2}
    assert it.expected_tpu_instances is not it.expected_tpu_instances
    nothing = isc_pathways.connect()
    assert (nothing.expected_tpu_instances, nothing.total_chips) == ({}, 0)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_connection_says_why_it_cannot_be_pickled_or_copied(
    copied: Callable[[object], object],
) -> None:
    with pytest.raises(TypeError, match="my-name cannot be pickled or copied"):
        copied(isc_pathways.connect(proxy_job_name="my-name"))
