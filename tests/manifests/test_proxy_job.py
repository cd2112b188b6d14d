from __future__ import annotations

import math
from typing import Any

import pytest

from harness.session_requests import session_request, with_fields
from shared_pathways_service.api.proxy_limits import LIMITS
from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.cluster_state.services import read_service
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.homes.kubernetes.job_inputs import proxy_job_inputs
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.proxy_job import (
    proxy_job,
    token_secret,
)
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from tests.manifests.proxy_jobs import GOOGLES, OURS, container, pod, variables, with_options


def test_labels_and_annotations_name_the_owner() -> None:
    job = proxy_job(with_fields(OURS, labels={"cost/center": "7", "app": "mine"}))
    labels = {
        "app": "pathways-proxy",
        "app.kubernetes.io/managed-by": "shared-pathways-service",
        "sps.dev/user": "Ada-Lovelace",
        "sps.dev/team": "research",
        "sps.dev/session": OURS.session,
        "sps.dev/service": "pw",
    }
    assert job["metadata"]["labels"] == {**labels, "cost/center": "7"}
    assert job["metadata"]["annotations"] == {
        "sps.dev/host": "ada's laptop",
        "sps.dev/instances": "tpuv6e:2x2=2",
        "sps.dev/client-version": OURS.client_version,
        "sps.dev/created-by-pid": "42",
    }
    assert job["metadata"]["namespace"] == "team-a"
    assert job["spec"]["template"]["metadata"]["labels"] == labels
    assert names.bears_session(job, OURS.session)


def test_it_ends_for_good_and_is_cleared_away() -> None:
    spec = proxy_job(GOOGLES)["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 600)
    assert spec["ttlSecondsAfterFinished"] > 0
    assert pod(GOOGLES)["restartPolicy"] == "Never"
    assert proxy_job(with_fields(GOOGLES, deadline_s=15))["spec"]["activeDeadlineSeconds"] == 15


def test_the_pod_is_as_restricted_as_can_be() -> None:
    spec = pod(OURS)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(OURS)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert "hostNetwork" not in spec
    assert all("hostPort" not in port for port in container(OURS)["ports"])


def test_an_image_that_needs_its_own_user_gets_it() -> None:
    security = pod(with_options(GOOGLES, "run_as_user:0"))["securityContext"]
    assert security == {"seccompProfile": {"type": "RuntimeDefault"}}


def test_arguments_are_those_of_the_real_image() -> None:
    inputs = with_fields(
        GOOGLES,
        elastic_slices=1,
        options=ProxyOptions(sidecar=True, xla_flags=("--xla_a=1", "--xla_b=$(HOME)$x")),
    )
    assert container(inputs)["args"] == [
        "--server_port=29000",
        "--resource_manager_address=pw-pathways-head-0-0.pw:29001",
        "--gcs_scratch_location=gs://bucket/path",
        "--virtual_slices=tpuv6e:2x2,tpuv6e:2x2",
        "--num_elastic_slices=1",
        "--sidecar_name=external",
        "--xla_a=1",
        # As Kubernetes reads it: the text as it was given.
        "--xla_b=$$(HOME)$$x",
    ]


def test_what_is_not_asked_for_is_not_named() -> None:
    arguments = container(with_fields(GOOGLES, gcs_bucket=""))["args"]
    flags = {argument.partition("=")[0] for argument in arguments}
    assert flags == {"--server_port", "--resource_manager_address", "--virtual_slices"}


def test_our_proxy_takes_flags_and_variables() -> None:
    inputs = with_fields(
        with_options(OURS, "sidecar:true", "xla_flags:--xla_a=1"),
        elastic_slices=1,
        priority=-3,
        queue_timeout_s=90,
    )
    options = parse_flags(ProxyServerOptions, container(inputs)["args"], variables(inputs))
    assert (options.server_port, options.bind_address) == (29000, "0.0.0.0")
    assert options.num_elastic_slices == 1
    assert (options.tenant_name, options.tenant_user) == (inputs.tenant.name, "Ada Lovelace")
    assert (options.tenant_host, options.tenant_team) == ("ada's laptop", "research")
    assert (options.tenant_priority, options.queue_timeout_s) == (-3, 90)
    assert (options.colocated_python, options.sidecar_name) == (True, "")
    [mount] = container(inputs)["volumeMounts"]
    assert options.token_file == f"{mount['mountPath']}/token"
    # (All that the kubelet copies to a pod's status.)
    assert (options.last_requests_file, options.last_requests_bytes) == (
        "/dev/termination-log",
        4096,
    )


def test_limits_are_our_proxys_flags_and_refused_for_googles() -> None:
    asked = {name: 1000 + number for number, name in enumerate(LIMITS)}
    texts = [f"{name}:{value}" for name, value in asked.items()]
    inputs = with_options(OURS, *texts)
    options = parse_flags(ProxyServerOptions, container(inputs)["args"], variables(inputs))
    assert {name: getattr(options, name) for name in LIMITS} == asked
    for text in texts:
        with pytest.raises(InvalidRequestError) as raised:
            with_options(GOOGLES, text)
        assert (raised.value.field, raised.value.value) == ("proxy_options", text)
        assert GOOGLES.image in raised.value.expected
        assert "memory:" in raised.value.hint


def test_plaintext_is_the_default_and_can_be_switched_off_for_googles() -> None:
    variable = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
    for inputs in (GOOGLES, OURS):
        assert variables(inputs)[variable] == "true"
        assert variables(with_options(inputs, "use_insecure_credentials:true"))[variable] == "true"
    assert variables(with_options(GOOGLES, "use_insecure_credentials:false")) == {}
    with pytest.raises(InvalidRequestError) as raised:
        with_options(OURS, "use_insecure_credentials:false")
    assert raised.value.value == "use_insecure_credentials:false"
    assert OURS.image in raised.value.expected


def test_a_proxy_speaks_to_servers_as_its_service_does() -> None:
    name = "PATHWAYS_UNSAFE_UNSAFE_OVERRIDE_GRPC_CREDENTIALS"
    assert name not in variables(GOOGLES)
    outside = ServiceInputs(
        name="pw", instances={"tpuv6e:2x2": 1}, insecure_server_credentials=True
    )
    service = read_service(service_jobset(outside))
    assert service is not None
    made = proxy_job_inputs(
        session_request(),
        service,
        priority=0,
        namespace="default",
        session=GOOGLES.session,
        created_by_pid=1,
        ahead_s=600,
        link=None,
    )
    assert variables(made)[name] == "grpc_insecure_override"


def test_what_proves_a_user_is_in_the_pod_and_not_in_labels() -> None:
    wanted = ServiceInputs(
        name="pw",
        instances={"tpuv6e:2x2": 1},
        image="r.io/shared-pathways-service/server:0.1.0",
        verify_users=True,
    )
    service = read_service(service_jobset(wanted))
    assert service is not None
    request = session_request(labels={names.LABEL_TEAM: "vision"})
    inputs = proxy_job_inputs(
        request,
        service,
        priority=0,
        namespace="default",
        session=GOOGLES.session,
        created_by_pid=1,
        ahead_s=600,
        link=None,
        user="ada@example.com",
    )
    job = proxy_job(inputs)
    # By its label `sps list` and `sps reap` find what is this machine's user's.
    assert job["metadata"]["labels"][names.LABEL_USER] == "ada"
    assert names.ANNOTATION_VERIFIED_USER not in job["metadata"]["annotations"]
    annotations = job["spec"]["template"]["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_VERIFIED_USER] == "ada@example.com"
    assert annotations[names.ANNOTATION_VERIFIED_TEAM] == "vision"
    [volume] = [one for one in pod(inputs)["volumes"] if "projected" in one]
    token = volume["projected"]["sources"][0]["serviceAccountToken"]
    assert token["audience"] == service.audience == "pw.default.sps.dev"
    [mount] = [one for one in container(inputs)["volumeMounts"] if one["name"] == volume["name"]]
    options = parse_flags(ProxyServerOptions, container(inputs)["args"], variables(inputs))
    assert options.identity_token_file == f"{mount['mountPath']}/{token['path']}"


@pytest.mark.parametrize(("given", "told"), [(None, None), (0.0, 0.0), (math.inf, math.inf)])
def test_the_queue_timeout_arrives(given: float | None, told: float | None) -> None:
    inputs = with_fields(OURS, queue_timeout_s=given)
    options = parse_flags(ProxyServerOptions, container(inputs)["args"], variables(inputs))
    assert options.queue_timeout_s == told


@pytest.mark.parametrize("given", [None, 0.5, 12_345_678.25])
def test_the_lifetime_arrives(given: float | None) -> None:
    inputs = with_fields(OURS, max_lifetime_s=given)
    options = parse_flags(ProxyServerOptions, container(inputs)["args"], variables(inputs))
    assert options.max_lifetime_s == given


def test_our_token_is_in_a_secret_that_goes_with_the_job() -> None:
    secret = token_secret(OURS, "token-text", "uid-1")
    metadata = secret["metadata"]
    assert metadata["name"] == "isc-proxy-ada-x7k2p-6f9c1d0e"
    assert metadata["namespace"] == OURS.namespace
    assert names.bears_session(secret, OURS.session)
    [owner] = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", OURS.tenant.name, "uid-1")
    [volume] = pod(OURS)["volumes"]
    assert volume["secret"] == {"secretName": metadata["name"], "defaultMode": 0o400}
    [mount] = container(OURS)["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert secret["stringData"] == {"token": "token-text"}
    # Without the group, a user that is not root could not read its own token.
    assert pod(OURS)["securityContext"]["fsGroup"] == pod(OURS)["securityContext"]["runAsUser"]


def test_googles_image_gets_neither_token_nor_variables_of_ours() -> None:
    inputs = with_options(
        with_fields(GOOGLES, priority=3, queue_timeout_s=5.0, max_lifetime_s=9.0, team="t")
    )
    assert variables(inputs) == {"IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true"}
    assert "volumes" not in pod(inputs)
    assert "volumeMounts" not in container(inputs)
    assert (inputs.has_token, inputs.has_secret) == (False, False)


def test_pod_options_arrive() -> None:
    inputs = with_options(
        GOOGLES,
        "cpu:500m",
        "memory:1.5Gi",
        "node_selector:cloud.google.com/gke-nodepool=cpu-np,a=b",
        "tolerations:dedicated=proxies:NoSchedule,spot",
        "host_network:true",
    )
    spec = pod(inputs)
    assert container(inputs)["resources"] == {
        "requests": {"cpu": "500m", "memory": "1.5Gi"},
        "limits": {"memory": "1.5Gi"},
    }
    assert spec["nodeSelector"] == {"cloud.google.com/gke-nodepool": "cpu-np", "a": "b"}
    assert spec["tolerations"] == [
        {"key": "dedicated", "operator": "Equal", "value": "proxies", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists"},
    ]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_a_users_text_is_nowhere_expanded() -> None:
    inputs = with_fields(OURS, user="$(SPS_TOKEN_FILE)", host="$$")
    assert variables(inputs)["SPS_TENANT_USER"] == "$$(SPS_TOKEN_FILE)"
    assert variables(inputs)["SPS_TENANT_HOST"] == "$$$$"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("service_address", "http://pw:1"),
        ("deadline_s", 0),
    ],
)
def test_what_no_job_can_be_made_of_is_refused(field: str, value: object) -> None:
    changed: dict[str, Any] = {field: value}
    with pytest.raises(InvalidRequestError) as caught:
        with_fields(GOOGLES, **changed)
    assert caught.value.field == field
