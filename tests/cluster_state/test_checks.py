"""The preflight's checks, each from the answers it stands on."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.api.checks import Check, Outcome, judge
from shared_pathways_service.cluster_state import preflight_checks
from shared_pathways_service.cluster_state.readiness import read_readiness
from shared_pathways_service.cluster_state.services import Service, find_service
from shared_pathways_service.errors import (
    AccessDenied,
    InvalidRequestError,
    ServiceNotReady,
    VersionSkew,
)
from shared_pathways_service.manifests.image_names import Versions
from shared_pathways_service.manifests.names import ANNOTATION_DRAINING
from shared_pathways_service.manifests.permissions import needed
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from tests.cluster_state import objects

KIND = "tpuv6e:2x2"
CLIENT = Versions(jax="0.10.2", python="3.12")


def service(**inputs: object) -> Service:
    made = ServiceInputs(name="p", instances={KIND: 2}, **inputs)  # type: ignore[arg-type]
    return find_service([service_jobset(made)])


def test_judging() -> None:
    def fails() -> str:
        raise InvalidRequestError("f", 1, "2", hint="try 2")

    assert judge("n", lambda: "all well") == Check(name="n", outcome=Outcome.OK, found="all well")
    warned = judge("n", lambda: "all well", warns=lambda: "but")
    assert (warned.outcome, warned.found) == (Outcome.WARNING, "but")
    for check in (judge("n", fails), judge("n", lambda: "", warns=fails)):
        assert (check.outcome, check.fix) == (Outcome.FAILED, "try 2")
        assert isinstance(check.error, InvalidRequestError)
    denied = Check.failed("n", AccessDenied("no", rule="- rule", hint="ask"))
    assert denied.fix == "ask\n- rule"


def test_permissions() -> None:
    wanted = needed(ours=True)
    assert preflight_checks.permissions_check(wanted, [], "ns").found.startswith(
        f"all {len(wanted)} "
    )
    check = preflight_checks.permissions_check(wanted, wanted[:2], "ns")
    assert isinstance(check.error, AccessDenied)
    assert '"create", "get"' in check.fix


def test_a_drained_service_admits_no_one_and_keeps_its_tenants() -> None:
    jobset = service_jobset(ServiceInputs(name="p", instances={KIND: 2}))
    jobset["metadata"]["annotations"] = {ANNOTATION_DRAINING: "it is being upgraded"}
    check, found = preflight_checks.service_check([jobset], "", namespace="team")
    assert isinstance(check.error, ServiceNotReady)
    assert "refuses new connections: it is being upgraded" in check.found
    assert found is not None
    # It is no service that is over: who waits for it to be complete, or looks at it, does so.
    assert not found.ended


def test_types() -> None:
    assert preflight_checks.types_check(service(), (KIND,)).found == f"2 x {KIND}"
    assert preflight_checks.types_check(service(), (KIND,) * 3).outcome is Outcome.FAILED
    untold = dataclasses.replace(service(), instances={})
    assert preflight_checks.types_check(untold, (KIND,)).outcome is Outcome.UNKNOWN


def test_images_and_versions() -> None:
    check, image = preflight_checks.image_check(service(image="r/pathways/server:jax-0.10.2"), "")
    assert (check.outcome, image) == (Outcome.OK, "r/pathways/proxy_server:jax-0.10.2")
    assert preflight_checks.jax_check(CLIENT, image).outcome is Outcome.OK
    assert preflight_checks.jax_check(CLIENT, "r/x:jax-0.12.0.1").outcome is Outcome.OK
    assert preflight_checks.jax_check(CLIENT, "r/x:jax-0.13.0").outcome is Outcome.WARNING
    assert isinstance(preflight_checks.jax_check(CLIENT, "r/x:jax-0.9.0").error, VersionSkew)
    assert isinstance(preflight_checks.jax_check(CLIENT, "r/x:jax-1.0.0").error, VersionSkew)
    assert preflight_checks.jax_check(CLIENT, "r/x:latest").outcome is Outcome.UNKNOWN
    digest = dataclasses.replace(service(), image=f"r/server@sha256:{'0' * 64}")
    check, image = preflight_checks.image_check(digest, "")
    assert (check.outcome, image) == (Outcome.FAILED, "")
    assert preflight_checks.image_check(digest, "mine:1")[1] == "mine:1"


def test_sidecar() -> None:
    theirs = "r/pathways/proxy_server:jax-0.10.2"
    none = preflight_checks.sidecar_check(CLIENT, service(), theirs)
    assert isinstance(none.error, InvalidRequestError)
    assert "p has none" in none.error.expected
    beside = "r/colocated-python-sidecar:20260101-python_{}-jax_0.10.2"
    right = dataclasses.replace(service(), sidecar_image=beside.format("3.12"))
    wrong = dataclasses.replace(service(), sidecar_image=beside.format("3.11"))
    assert preflight_checks.sidecar_check(CLIENT, right, theirs).outcome is Outcome.OK
    assert isinstance(preflight_checks.sidecar_check(CLIENT, wrong, theirs).error, VersionSkew)


def test_our_proxy_runs_colocated_python_unless_its_service_has_executors() -> None:
    ours = "r/shared-pathways-service/proxy_server:{}"
    for tag, outcome in (("0.1.0", Outcome.UNKNOWN), ("python_3.12-jax_0.10.2", Outcome.OK)):
        check = preflight_checks.sidecar_check(CLIENT, service(), ours.format(tag))
        assert (check.outcome, check.error) == (outcome, None)
    skewed = preflight_checks.sidecar_check(CLIENT, service(), ours.format("python_3.11"))
    assert isinstance(skewed.error, VersionSkew)
    distributed = dataclasses.replace(service(), engine="distributed")
    refused = preflight_checks.sidecar_check(CLIENT, distributed, ours.format("0.1.0")).error
    assert isinstance(refused, InvalidRequestError)
    assert refused.value == "sidecar:true"
    assert "--allow-colocated-python" in refused.expected
    on_gpus = dataclasses.replace(distributed, platform="cuda")
    refused = preflight_checks.sidecar_check(CLIENT, on_gpus, ours.format("0.1.0")).error
    assert isinstance(refused, InvalidRequestError)
    assert "whose platform is cuda" in refused.expected
    allowed = dataclasses.replace(distributed, allows_python=True)
    check = preflight_checks.sidecar_check(CLIENT, allowed, ours.format("0.1.0"))
    assert check.outcome is Outcome.UNKNOWN


def test_bucket() -> None:
    assert preflight_checks.bucket_check(service(), "").outcome is Outcome.UNKNOWN
    assert "as requested" in preflight_checks.bucket_check(service(), "gs://mine").found
    known = service(gcs_bucket="gs://theirs")
    assert (
        preflight_checks.bucket_check(known, "").found == "gs://theirs, from the resource manager"
    )
    assert preflight_checks.bucket_check(known, "mine").found == "gs://mine, as requested"
    assert preflight_checks.bucket_check(known, "s3://mine").outcome is Outcome.FAILED


def test_a_proxy_is_kept_no_longer_than_the_operator_allows() -> None:
    limited = service(max_keep_for_s=3600.0)
    assert limited.max_keep_for_s == 3600.0
    assert preflight_checks.keep_for_check(limited, 3600.0).outcome is Outcome.OK
    assert preflight_checks.keep_for_check(service(), 1e9).outcome is Outcome.OK
    check = preflight_checks.keep_for_check(limited, 3601.0)
    assert isinstance(check.error, InvalidRequestError)
    assert (check.error.field, check.error.value) == ("keep_for", 3601.0)
    assert "at most 3600 seconds" in check.error.expected


def test_head_and_slices() -> None:
    def pod(name: str, replicated: str, container: str, **how: object) -> objects.Object:
        labels = {
            "jobset.sigs.k8s.io/jobset-name": "p",
            "jobset.sigs.k8s.io/replicatedjob-name": replicated,
            "jobset.sigs.k8s.io/job-index": "0",
        }
        return objects.running(name, container=container, labels=labels, **how)

    worker = pod("w", "worker", "pathways-worker")
    none = read_readiness(service(), [])
    assert "the head has no pod" in preflight_checks.head_check(none).found
    assert isinstance(preflight_checks.slices_check(none, (), 0).error, ServiceNotReady)
    half = read_readiness(service(), [worker, pod("h", "pathways-head", "pathways-rm")])
    assert preflight_checks.head_check(half).outcome is Outcome.OK
    assert preflight_checks.slices_check(half, (KIND,), 0).outcome is Outcome.WARNING
    assert preflight_checks.slices_check(half, (KIND, KIND), 1).outcome is Outcome.WARNING
    check = preflight_checks.slices_check(half, (KIND, KIND), 0)
    assert check.outcome is Outcome.FAILED
    assert "1 of 1 pods of slice 1 of worker are missing" in check.found


def test_waiting_mends_readiness_and_nothing_else() -> None:
    waits, fails = preflight_checks.Examined(), preflight_checks.Examined()
    error, final = ServiceNotReady("not yet"), InvalidRequestError("f", 1, "2")
    waits.add(Check.failed("slices", error), Check.failed("resource manager", error))
    assert waits.final_failure is None
    warning = Check(name="w", outcome=Outcome.WARNING, found="hm")
    fails.add(*waits.checks, warning, Check.failed("x", final))
    assert fails.final_failure is final
    assert fails.warnings == ["hm"]
