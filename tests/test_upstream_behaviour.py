"""What upstream's own unit tests demand of its behaviour, demanded of this package.

Upstream's tests (pathwaysutils, `test/experimental/shared_pathways_service`, 0.1.13) replace
kubectl, gcloud, JAX and the connection itself by mocks, and many of them assert how the mocks are
called. This lists which of them are about behaviour that a user sees, and what tests it here; the
cases are this module's, the code is not upstream's.

=============================================  ====================================================
upstream's test                                here
=============================================  ====================================================
validators: pathways_service                   `test_addresses_of_a_service`
validators: tpu_instances                      `test_instances`
validators: proxy_options, xla_flags;          `test_proxy_options`
isc_pathways: proxy_options_from_list
validators: sidecar_image_versions;            `manifests/test_images.py`,
isc_pathways: connect_with_sidecar             `cluster_state/test_checks.py: test_sidecar`
isc_pathways: wait_for_placement               `connection/test_log_lines.py`, `cluster_state/
                                               test_placement.py: test_the_real_proxys_log`
isc_pathways: deploy_pathways_proxy_server     `test_the_proxys_job`; image_escaping:
                                               `test_an_image_cannot_change_the_job`
isc_pathways: pod_wait_failure                 `testbed/failures/test_failures_start.py`
isc_pathways: isc_pathways (JAX's variables    `e2e/connect/test_connect_cycles.py`,
inside, and put back)                          `jax_client/test_attach.py`
isc_pathways: reports_metrics                  `testbed/test_metrics.py`
isc_pathways: connect_success                  `test_the_name_made_up`
isc_pathways: connect_with_non_existent_...    `kube/test_google.py: test_unknown_cluster_...`
isc_pathways: connect_with_tpuv3               `test_instances`
tpu_specs                                      `api/test_topology.py`, `api/test_slice_names.py`
run_workload                                   `testbed/operating/test_upstream.py`,
                                               `e2e/test_run_service.py`
run_connect_example                            `testbed/operating/test_upstream.py`
deploy_pathways_service                        `manifests/test_service_jobset.py`,
                                               `cli/test_absl_flags.py`
=============================================  ====================================================

Not demanded: that a file of YAML is missing (there is none); that JAX's caches are cleared and the
garbage is collected by these very functions; how kubectl, gcloud and threads are called.
"""

from __future__ import annotations

import ast
import getpass
import inspect
import re
from typing import Any

import pytest

from harness.session_requests import job_inputs
from harness.upstream import service_file
from shared_pathways_service import isc_pathways
from shared_pathways_service.manifests.proxy_job import proxy_job
from shared_pathways_service.session.cloud_metrics import METRICS
from tests.upstream import upstream_keywords, upstreams

KIND = "tpuv6e:2x2"
GKE = {
    "cluster": "test-cluster",
    "project": "test-project",
    "region": "test-region",
    "gcs_bucket": "test-bucket",
    "pathways_service": "test-service:1234",
    "expected_tpu_instances": {KIND: 1},
}


def connect(**changed: Any) -> isc_pathways.Connection:
    return isc_pathways.connect(**{**GKE, **changed})


def test_every_keyword_of_upstream_is_taken() -> None:
    theirs = upstream_keywords()
    assert len(theirs) == 10
    assert theirs <= inspect.signature(isc_pathways.connect).parameters.keys()


def test_every_public_attribute_of_upstream_is_there_before_the_block() -> None:
    documented = ast.get_docstring(upstreams("_ISCPathways", ast.ClassDef)) or ""
    theirs = re.findall(r"^  ([a-z_]+):", documented, re.MULTILINE)
    assert len(theirs) == 13
    it = connect(expected_tpu_instances={KIND: 2})
    assert [name for name in theirs if not hasattr(it, name)] == []
    assert it.total_chips == 8


def test_every_call_of_upstreams_metrics_collector_is_taken() -> None:
    source = service_file("metrics_collector.py").read_text(encoding="utf-8")
    calls = set(re.findall(r"^  def (record_[a-z_]+)\(", source, re.MULTILINE))
    assert len(calls) == 6
    collector = connect().metrics_collector
    assert [name for name in calls if not callable(getattr(collector, name, None))] == []


def test_the_metrics_are_upstreams() -> None:
    source = service_file("metrics_collector.py").read_text(encoding="utf-8")
    theirs = re.findall(r'^_METRIC_[A-Z_]+ = "([a-z_]+)"$', source, re.MULTILINE)
    assert sorted(metric.name for metric in METRICS) == sorted(theirs)


def test_addresses_of_a_service() -> None:
    for right in ("test-service:1234", "pathways-cluster-pathways-head-0-0.pathways-cluster:8080"):
        assert connect(pathways_service=right).pathways_service == right
    for wrong in (
        "test-service",
        "test-service:",
        ":1234",
        "test-service:port",
        "",
        "test-service:1234:5678",
    ):
        with pytest.raises(ValueError, match="pathways_service"):
            connect(pathways_service=wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"tpuv6e:2x2": 4},
        {"tpuv6e:2x4": 1},
        {"tpuv6e:4x4": 1},
        {"tpuv5e:2x2": 4},
        {"tpuv5e:4x4": 1},
        {"tpuv5:2x2x2": 1},
        {"tpuv5:2x2x4": 1},
        # Refused by upstream: xpk's names, of any of a family's names.
        {"tpuv6e-8": 1},
        {"tpuv6e-16": 1},
        {"v5e-16": 1},
    ],
)
def test_instances(right: dict[str, int]) -> None:
    assert sum(connect(expected_tpu_instances=right).expected_tpu_instances.values()) == sum(
        right.values()
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"": 2},
        *(
            {name: 1}
            for name in (
                "tpuv3:4x4",
                "invalid-format",
                "ct5lp-hightpu-16t:4x4",
                "ct5lp-8",
                "ct5p:2x2",
                "ct7e-8",
                "tpuv7e-8",
                "ct5lp:1x1x",
                "ct5lp:axb",
                "foo-bar",
                "tpuv6e:1",
                "tpuv6e:1x2x3x4",
                # Accepted by upstream, though no v6e is built in three dimensions.
                "tpuv6e:2x2x2",
            )
        ),
    ],
)
def test_wrong_instances(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected_tpu_instances"):
        connect(expected_tpu_instances=wrong)


def test_proxy_options() -> None:
    assert connect(proxy_options=None).proxy_options == isc_pathways.ProxyOptions()
    assert connect(proxy_options=[]).proxy_options == isc_pathways.ProxyOptions()
    for text in ("sidecar:true", " SIDECAR : True "):
        assert connect(proxy_options=[text]).proxy_options.sidecar
    for text in ("use_insecure_credentials:true", " USE_INSECURE_CREDENTIALS : True "):
        assert connect(proxy_options=[text]).proxy_options.use_insecure_credentials
    off = connect(proxy_options=["use_insecure_credentials:false"]).proxy_options
    assert not off.use_insecure_credentials
    for text in ('xla_flags:"--xla_a --xla_b=1"', "xla_flags:--xla_a --xla_b=1"):
        assert connect(proxy_options=[text]).proxy_options.xla_flags == ("--xla_a", "--xla_b=1")
    for wrong in ("invalid_option", ":value", "xla_flags:--not_xla_flag"):
        with pytest.raises(ValueError, match="proxy_options"):
            connect(proxy_options=[wrong])
    # Off in upstream.
    with pytest.raises(ValueError, match="true or false"):
        connect(proxy_options=["use_insecure_credentials:maybe"])


def test_the_name_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "testuser")
    assert re.fullmatch(r"isc-proxy-testuser-[a-z0-9]{5}", connect().proxy_job_name)
    assert connect(proxy_job_name="test-proxy").proxy_job_name == "test-proxy"


def job_of(**changed: Any) -> dict[str, Any]:
    asked = connect(**changed)
    made = proxy_job(
        job_inputs(
            name=asked.proxy_job_name,
            namespace="default",
            session="s",
            service_address=asked.pathways_service or "",
            virtual_slices=tuple(
                kind for kind, count in asked.expected_tpu_instances.items() for _ in range(count)
            ),
            image=asked.proxy_server_image,
            gcs_bucket=asked.bucket or "",
            options=asked.proxy_options,
            user="u",
            host="h",
            deadline_s=60,
        )
    )
    [container] = made["spec"]["template"]["spec"]["containers"]
    return {"name": made["metadata"]["name"], **container}


def test_the_proxys_job() -> None:
    job = job_of(
        proxy_job_name="test-proxy",
        expected_tpu_instances={KIND: 2},
        proxy_server_image="r.io/test-image:latest",
        proxy_options=["xla_flags:--xla_flag1 --xla_flag2", "sidecar:true"],
    )
    assert job["image"] == "r.io/test-image:latest"
    # Less than upstream's 16 CPUs and 100 GB.
    assert job["resources"]["requests"] == {"cpu": "4", "memory": "32Gi"}
    assert {
        "--server_port=29000",
        "--resource_manager_address=test-service:1234",
        "--gcs_scratch_location=gs://test-bucket",
        f"--virtual_slices={KIND},{KIND}",
        "--xla_flag1",
        "--xla_flag2",
        "--sidecar_name=external",
    } <= set(job["args"])


def test_credentials_of_the_proxys_job() -> None:
    def variables(**changed: Any) -> dict[str, Any]:
        return {variable["name"]: variable.get("value") for variable in job_of(**changed)["env"]}

    name = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
    # By default too, where upstream does not set it.
    assert variables()[name] == "true"
    assert variables(proxy_options=["use_insecure_credentials:true"])[name] == "true"
    assert name not in variables(proxy_options=["use_insecure_credentials:false"])


def test_an_image_cannot_change_the_job() -> None:
    for wrong in ('r.io/image:latest"\n- command: [pwn]\\\n', "r.io/image:tag extra", "r.io/i;id"):
        with pytest.raises(ValueError, match="proxy_server_image"):
            connect(proxy_server_image=wrong)
