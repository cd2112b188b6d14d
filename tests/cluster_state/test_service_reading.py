"""A service's inputs are read back from its JobSet, whatever they were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.cluster_state.service_reading import (
    difference,
    manifest_of,
    read_inputs,
    recorded_spec,
)
from shared_pathways_service.cluster_state.services import read_service
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.names import ANNOTATION_DRAINING, ANNOTATION_SENT_SPEC
from shared_pathways_service.manifests.service_inputs import (
    ServiceInputs,
    parse_slices,
    server_image,
)
from shared_pathways_service.manifests.service_jobset import record_spec, service_jobset

OURS = "r.io/shared-pathways-service/server:1"
ARGUMENTS = st.lists(
    st.builds("--{}={}".format, st.sampled_from(("v", "xla_x")), st.text("a$()=, ", max_size=6)),
    max_size=2,
).map(tuple)


@st.composite
def inputs(draw: st.DrawFn) -> ServiceInputs:
    ours = draw(st.booleans())
    kinds = ["tpuv6e:2x2", "tpuv6e:4x4", "tpuv5:2x2x2"]
    names = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3 if ours else 1))
    counts = {name: draw(st.integers(2, 5)) for name in names}
    bucket = draw(st.sampled_from(("", "gs://bucket", "gs://bucket/a$(b)")))
    size = draw(st.sampled_from(("", "1Gi"))) if ours else ""
    return ServiceInputs(
        name="pw",
        namespace="team-a",
        instances=counts,
        gcs_bucket=bucket,
        image=OURS if ours else "r.io/server:jax-0.9.0",
        sidecar_image="" if ours else draw(st.sampled_from(("", "r.io/sidecar:1"))),
        spares=draw(st.integers(0, 1)) if ours else 0,
        max_restarts=draw(st.integers(0, 30)),
        max_slice_restarts=draw(st.integers(0, 1_000_000)),
        priority_class=draw(st.sampled_from(("", "high-priority-job"))),
        server_args=draw(ARGUMENTS),
        worker_args=draw(ARGUMENTS),
        gcsfuse=bool(bucket) and draw(st.booleans()),
        host_network=draw(st.booleans()),
        insecure_server_credentials=not ours and draw(st.booleans()),
        max_keep_for_s=draw(st.none() | st.floats(60.0, 1e8)),
        state_size=size,
        storage_class=draw(st.sampled_from(("", "fast"))) if size else "",
        lease=ours and draw(st.booleans()),
        labels=draw(st.sampled_from(({}, {"cost/center": "7"}))),
    )


@given(inputs())
def test_what_was_put_in_comes_out(wanted: ServiceInputs) -> None:
    jobset = service_jobset(wanted)
    service = read_service(jobset)
    assert service is not None
    assert read_inputs(jobset, service) == wanted
    assert not difference(jobset["spec"], copy.deepcopy(jobset["spec"]))
    assert recorded_spec(jobset) is None
    record_spec(jobset)
    assert not difference(jobset["spec"], recorded_spec(jobset))
    assert read_inputs(jobset, service) == wanted


def test_a_manifest_has_what_the_api_server_did_not_set() -> None:
    wanted = ServiceInputs(name="pw", namespace="a", instances={"tpuv6e:2x2": 1}, image=OURS)
    sent = service_jobset(wanted)
    record_spec(sent)
    metadata = {**sent["metadata"], "uid": "1", "resourceVersion": "2", "generation": 3}
    metadata["annotations"] = {**sent["metadata"]["annotations"], ANNOTATION_DRAINING: "now"}
    found = {**sent, "metadata": metadata, "status": {"restarts": 1}}
    assert manifest_of(found) == sent


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_an_invalid_recorded_spec_is_none(text: str) -> None:
    metadata = {"name": "pw", "annotations": {ANNOTATION_SENT_SPEC: text}}
    assert recorded_spec({"metadata": metadata}) is None


def test_a_difference_is_named_by_its_path() -> None:
    made: dict[str, Any] = {"jobs": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}
    changed: list[tuple[dict[str, Any], str]] = [
        ({"jobs": [{**made["jobs"][0], "env": [{"name": "X"}]}]}, "spec.jobs[a].env[X].value"),
        ({"jobs": [{**made["jobs"][0], "more": True}]}, "spec.jobs[a].more"),
        ({"jobs": [*made["jobs"], {}]}, "spec.jobs"),
        ({}, "spec.jobs"),
    ]
    for other, where in changed:
        assert difference(made, other) == where


def test_slices_are_named_by_type_or_by_machine() -> None:
    assert parse_slices({"tpuv6e:2x2": 2}) == {"tpuv6e:2x2": 2}
    assert parse_slices({"ct6e-standard-4t:4x4": 1}) == {"tpuv6e:4x4": 1}
    for wrong in (
        {"tpuv6e:3x3": 1},
        {"ct6e-standard-8t:4x4": 1},
        {"ct9": 1},
        {"tpuv6e:4x4": 1, "ct6e-standard-4t:4x4": 1},
    ):
        with pytest.raises(InvalidRequestError) as caught:
            parse_slices(wrong)
        assert caught.value.field == "--slices"


def test_an_image_is_named_by_a_release_of_jax_or_by_itself() -> None:
    assert server_image(None, None) is None
    assert server_image(None, "r.io/x:1") == "r.io/x:1"
    name = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/server:jax-0.9.0"
    assert server_image("0.9.0", None) == name
    assert (server_image("0.12.0.1", None) or "").endswith(":jax-0.12.0.1")
    for release, image in (("0.9.0", "r.io/x:1"), ("latest", None), (None, "r.io/x y")):
        with pytest.raises(InvalidRequestError):
            server_image(release, image)
