"""Keywords of connect(): which values are accepted, and which are refused by name."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.api.request_fields import check_proxy_job_name, default_proxy_job_name
from shared_pathways_service.api.requests import DEFAULT_PROXY_IMAGE, ProxyOptions
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.protocol.tenant_requests import message_of, read_tenant_request
from tests.api.building import build, refusal

#: Where a request has keywords of connect() that are not its own fields by the same name.
FIELDS = {
    "pathways_service": "service.pathways_service",
    "queue_timeout": "tenant.queue_timeout_s",
    "timeout": "timeout_s",
    "priority": "tenant.priority",
    "max_lifetime": "tenant.max_lifetime_s",
    "keep_for": "keep_for_s",
    "proxy_job_name": "name",
}
GKE = {"cluster": "c", "project": "my-project", "region": "us-central2"}


def test_the_default_request_is_one_slice_of_the_embedded_service() -> None:
    request = build()
    assert request.service.home == "embedded"
    assert request.tenant.virtual_slices == ()
    assert request.name == "isc-proxy-ada-x7k2p"
    assert request.proxy_server_image == DEFAULT_PROXY_IMAGE
    assert request.proxy_options == ProxyOptions()
    assert (request.timeout_s, request.tenant.queue_timeout_s, request.tenant.priority) == (
        300.0,
        None,
        0,
    )
    assert (request.wait, request.service.namespace, request.labels) == ("placed", "default", {})
    assert request.local_port is None
    assert request.tenant.max_lifetime_s is None
    assert (request.link, request.keep_for_s) == ("resumable", None)


def test_a_request_is_plain_data() -> None:
    request = build(labels={"sps.dev/team": "vision"}, expected_tpu_instances={"tpuv6e:2x2": 2})
    assert request.tenant.team == "vision"
    assert dataclasses.asdict(request)["labels"] == {"sps.dev/team": "vision"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.timeout_s = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "keywords",
    [
        GKE,
        {"context": "kind-test"},
        {"context": "my cluster"},
        {"pathways_service": "head-0-0.head:29001"},
        {**GKE, "pathways_service": "10.0.0.7:29001", "gcs_bucket": "gs://bucket/a/b"},
        {"context": "c", "namespace": "team-a"},
    ],
)
def test_a_cluster_context_or_service_selects_kubernetes(keywords: dict[str, Any]) -> None:
    assert build(**keywords).service.home == "kubernetes"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        (
            "pathways_service",
            [
                "head",
                "head:",
                ":29001",
                "head:0",
                "head:70000",
                "grpc://head:29001",
                "a b:1",
                29001,
            ],
        ),
        (
            "proxy_job_name",
            ["Ada", "a_b", "-a", "a-", "", "a.b", "a" * 58, "ä", 5, "a\n"],
        ),
        (
            "proxy_options",
            [
                ["use_insecure_credentials"],
                [":true"],
                ["use_insecure_credentials:yes"],
                ["sidecar:"],
                ["xla_flags:"],
                ["xla_flags:--foo"],
                ["xla_flags:xla_a"],
                ["xla_flags:--xla_A=1"],
                ["xla_flags:--xla_a=1 rm -rf"],
                ["xla_flags:'--xla_a"],
                ["sidecar:true", "sidecar:false"],
                ["cpu:0"],
                ["cpu:four"],
                ["cpu:4", "cpu:4"],
                ["memory:-1Gi"],
                ["memory:1gb"],
                ["node_selector:pool"],
                ["node_selector:a=b,a=c"],
                ["node_selector:a b=c"],
                ["node_selector:"],
                ["tolerations:a=b:Sometimes"],
                ["tolerations:=b"],
                ["tolerations:a,,b"],
                ["host_network:1"],
                ["run_as_user:root"],
                ["run_as_user:-1"],
                ["run_as_user:9999999999"],
                [5],
                "sidecar:true",
                7,
            ],
        ),
        ("timeout", [-1, -0.5, math.nan, math.inf, True, "5", None]),
        ("queue_timeout", [-1, math.nan, True, "60", -math.inf]),
        ("link", ["", "Plain", None, True, 1]),
        ("keep_for", [59.9, "59s", "0.9m", math.nan, math.inf, True, 4e9, "9999999h"]),
        ("keep_for", ["", "m", "1d", "1h30m", "-60", " 60", "1e3", "60 s", b"60"]),
        ("max_lifetime", [0, -1, math.nan, math.inf, 1e12, False, "1h"]),
        ("gcs_bucket", ["ab", "s3://bucket", "gs://", "gs://ab", "", "gs://Upper", "gs://-ab-", 3]),
        ("gcs_bucket", ["gs://goog-x", "gs://my-google", "gs://1.2.3.4", "gs://" + "a" * 64]),
        ("gcs_bucket", ["gs://bucket/with blank", "gs://a..b", "gs://bucket\n"]),
        ("priority", ["high", 1.5, True, 2**31, -(2**31) - 1]),
        ("elastic_slices", [-1, 1, 1.0, True, "0", None]),
        ("local_port", [-1, 65536, 1.5, True, "0"]),
        ("local_devices", [0, 1, "yes", None]),
        ("collect_service_metrics", [1, None]),
        ("wait", ["running", "", None, True]),
        ("namespace", ["Default", "a.b", "", None, "a" * 64]),
        ("labels", [["a"], {"a b": "c"}, {"a": "b c"}, {"a": 1}, {"": "x"}, {"/a": "x"}]),
        ("labels", [{"app": "x"}, {"sps.dev/user": "eve"}, {5: "x"}, {"a": "x" * 64}]),
        ("on_event", ["print", 5]),
        ("profile", ["", "a b", 5]),
        ("proxy_server_image", ["an image", 5, "image; rm"]),
        ("cluster", ["", "a b", 5]),
        ("context", ["", " ", "a\nb", 5]),
    ],
)
def test_bad_values_are_refused_by_name(field: str, values: list[object]) -> None:
    for value in values:
        error = refusal(**{field: value})
        assert error.field == field, value
        assert field in error.message


@pytest.mark.parametrize(
    ("keywords", "field"),
    [
        ({"cluster": "c", "region": "r"}, "project"),
        ({"cluster": "c", "project": "my-project"}, "region"),
        ({**GKE, "context": "other"}, "context"),
        ({"project": "my-project"}, "project"),
        ({"region": "us-central2"}, "region"),
        ({"context": "c", "region": "us-central2"}, "region"),
        ({"namespace": "team-a"}, "namespace"),
        ({"expected_tpu_instances": {"tpuv6e:2x2": 2}, "elastic_slices": 2}, "elastic_slices"),
        ({**GKE, "project": "No Project"}, "project"),
        ({**GKE, "project": "NO"}, "project"),
    ],
)
def test_conflicting_fields_are_refused(keywords: dict[str, Any], field: str) -> None:
    assert refusal(**keywords).field == field


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("pathways_service", "[::1]:29001", "[::1]:29001"),
        ("queue_timeout", math.inf, math.inf),
        ("queue_timeout", 0, 0.0),
        ("timeout", 0, 0.0),
        ("priority", -5, -5),
        ("local_port", 0, 0),
        ("max_lifetime", 3600, 3600.0),
        ("link", "resumable", "resumable"),
        ("keep_for", 60, 60.0),
        ("keep_for", "90", 90.0),
        ("keep_for", "90s", 90.0),
        ("keep_for", "1.5m", 90.0),
        ("keep_for", "2h", 7200.0),
        ("proxy_job_name", "a" * 57, "a" * 57),
        ("labels", {"example.com/a": "", "b": "C.d_e"}, {"example.com/a": "", "b": "C.d_e"}),
        ("gcs_bucket", "gs://my.domain.org/path/x=1", "gs://my.domain.org/path/x=1"),
        (
            "proxy_server_image",
            "host:5000/a/b@sha256:" + "0" * 64,
            "host:5000/a/b@sha256:" + "0" * 64,
        ),
    ],
)
def test_valid_values_are_accepted(field: str, value: object, kept: object) -> None:
    found = operator.attrgetter(FIELDS.get(field, field))(build(**{field: value}))
    assert found == kept
    assert type(found) is type(kept)


def test_the_default_image_matches_the_service() -> None:
    for value in (None, ""):
        assert build(proxy_server_image=value).proxy_server_image == DEFAULT_PROXY_IMAGE


def test_more_slices_than_the_service_accepts_are_refused_before_it_is_asked() -> None:
    most = build(expected_tpu_instances={"tpuv6e:2x2": 4000, "tpuv5e:2x2": 96}).tenant
    assert len(read_tenant_request(message_of(most)).virtual_slices) == 4096
    with pytest.raises(InvalidRequestError, match="at most 4096 slices"):
        build(expected_tpu_instances={"tpuv6e:2x2": 4000, "tpuv5e:2x2": 97})


@pytest.mark.parametrize("bucket", ["my-bucket", "my-bucket/path/x=1", "my.domain.org"])
def test_a_bucket_needs_no_scheme(bucket: str) -> None:
    assert build(gcs_bucket=bucket).gcs_bucket == f"gs://{bucket}"


@pytest.mark.parametrize("project", ["p", "ab", "my-project", "example.com:p"])
def test_a_project_id_may_be_short(project: str) -> None:
    assert build(**{**GKE, "project": project}).service.project == project


def test_a_refused_name_states_the_limit() -> None:
    assert "57" in refusal(proxy_job_name="a" * 58).message


def test_a_priority_may_be_named() -> None:
    assert build(priority="high-priority-job").tenant.priority == 2_000_000
    assert build(priority="low-priority-job").tenant.priority == 1_000_000
    assert build(priority=" -7 ").tenant.priority == -7


def test_an_unknown_priority_is_refused_with_the_known_ones() -> None:
    for value in ("high", "", "1.5"):
        error = refusal(priority=value)
        assert error.field == "priority"
        assert "low-priority-job, high-priority-job" in error.message


def test_in_a_cluster_any_priority_class_may_be_named() -> None:
    cluster = {"context": "c"}
    named = build(priority=" team-a.urgent ", **cluster)
    assert (named.tenant.priority, named.priority_class) == (0, "team-a.urgent")
    ours = build(priority="low-priority-job", **cluster)
    assert (ours.tenant.priority, ours.priority_class) == (1_000_000, "low-priority-job")
    for number in (7, "7", None):
        assert build(priority=number, **cluster).priority_class == ""
    # (The embedded service has none.)
    assert build(priority="low-priority-job").priority_class == ""
    for wrong in ("", "Urgent", "a_b"):
        error = refusal(priority=wrong, **cluster)
        assert error.field == "priority"
        assert "low-priority-job, high-priority-job" in error.expected
        assert "PriorityClass" in error.expected
    assert refusal(priority=1.5, **cluster).field == "priority"


def test_elastic_slices_are_fewer_than_all() -> None:
    request = build(expected_tpu_instances={"tpuv6e:2x2": 3}, elastic_slices=2)
    assert request.tenant.elastic_slices == 2


@given(user=st.text(max_size=100))
def test_a_generated_name_is_valid_for_any_user(user: str) -> None:
    name = default_proxy_job_name(user, "x7k2p")
    assert check_proxy_job_name(name) == name
    assert name.startswith("isc-proxy-")
    assert name.endswith("-x7k2p")


def test_a_generated_name_shows_the_user() -> None:
    assert default_proxy_job_name("Ada.Lovelace", "abc") == "isc-proxy-ada-lovelace-abc"
    assert default_proxy_job_name("", "abc") == "isc-proxy-user-abc"
    with pytest.raises(ValueError, match="suffix"):
        default_proxy_job_name("ada", "A-B")
