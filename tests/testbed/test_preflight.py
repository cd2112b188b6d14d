"""The preflight on a real control plane: what it finds, what it waits for, what it asks."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from harness.deadlines import deadline
from harness.session_requests import session_request
from shared_pathways_service.api.checks import Check, Outcome
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import (
    AccessDenied,
    InvalidRequestError,
    ServiceNotFound,
    ServiceNotReady,
)
from shared_pathways_service.events import Event
from shared_pathways_service.homes.kubernetes.preflight import Preflight
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.kubeconfig import access_of_context, read_kubeconfig
from shared_pathways_service.manifests.permissions import granting_rules, needed
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from shared_pathways_service.testing.testbed import Namespace, deploy_service
from shared_pathways_service.testing.testbed.audit import AUDIT_LOG, read_audit_log

T = TypeVar("T")

JOBSETS = "jobset.x-k8s.io/v1alpha2/jobsets"
KIND = "tpuv6e:2x2"
CRASHING = "testbed/exit:3"
DEADLINE_S = deadline(90.0)
REQUEST = session_request("isc-proxy-a", KIND)
OUR_IMAGE = "shared-pathways-service/proxy_server:1"


@contextlib.asynccontextmanager
async def preflight(
    namespace: Namespace, *, role: str = "tenant", address: str = ""
) -> AsyncIterator[Preflight]:
    config = read_kubeconfig([namespace.kubeconfig_of(role)])
    async with KubeApi(access_of_context(config)) as api:
        yield Preflight(api, namespace.name, address)


def examine(
    namespace: Namespace, request: SessionRequest = REQUEST, **how: str
) -> dict[str, Check]:
    """Returns the checks by name."""

    async def look() -> dict[str, Check]:
        async with preflight(namespace, **how) as wanted:
            examined = await wanted.examine(request, DEADLINE_S)
            return {check.name: check for check in examined.checks}

    return asyncio.run(look())


def wait(
    namespace: Namespace,
    until: Callable[[Event], bool],
    then: Callable[[], object],
    request: SessionRequest = REQUEST,
) -> list[Event]:
    """Waits for the service; when it has told what `until` wants, `then` is done."""
    told: list[Event] = []

    async def run() -> None:
        seen = asyncio.Event()

        def hear(news: Event) -> None:
            told.append(news)
            if until(news):
                seen.set()

        async with preflight(namespace) as wanted, asyncio.timeout(DEADLINE_S):
            waiting = asyncio.create_task(wanted.run(request, hear))
            looking = asyncio.create_task(seen.wait())
            await asyncio.wait({waiting, looking}, return_when=asyncio.FIRST_COMPLETED)
            looking.cancel()
            if not waiting.done():
                await asyncio.to_thread(then)
            await waiting

    within(run())
    return told


def within(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def jobset(namespace: Namespace, name: str = "pathways", **inputs: Any) -> dict[str, Any]:
    fields = {"instances": {KIND: 1}, "image": CRASHING, **inputs}
    return service_jobset(ServiceInputs(name=name, namespace=namespace.name, **fields))


def test_a_service_that_is_ready(namespace: Namespace) -> None:
    namespace.add_nodes({KIND: 1}, cpu_nodes=0)
    service = deploy_service(namespace, {KIND: 1}, gcs_bucket="gs://scratch")
    found = examine(namespace)
    assert {check.outcome for check in found.values()} <= {Outcome.OK, Outcome.UNKNOWN}
    assert [*found] == [
        "API server",
        "permissions",
        "service",
        "instance types",
        "proxy image",
        "JAX",
        "bucket",
        "resource manager",
        "slices",
    ]
    assert service.address in found["service"].found
    assert "gs://scratch" in found["bucket"].found
    assert found["slices"].found == "1 of 1 slices are ready"
    user = namespace.user("tenant").name
    asked = read_audit_log(namespace.testbed.directory / AUDIT_LOG, user)
    assert [(entry.verb, entry.resource) for entry in sorted(asked, key=lambda e: e.resource)] == [
        ("list", "jobsets"),
        ("list", "pods"),
        ("create", "selfsubjectrulesreviews"),
    ]

    # What can never be right is an error at once, and each check stands for itself.
    wrong = dataclasses.replace(
        session_request("isc-proxy-a", KIND, KIND), gcs_bucket="s3://scratch"
    )
    found = examine(namespace, wrong, address=service.address)
    failed = {name: c.error for name, c in found.items() if c.outcome is Outcome.FAILED}
    assert [*failed] == ["instance types", "bucket"]
    assert all(isinstance(error, InvalidRequestError) for error in failed.values())
    with pytest.raises(InvalidRequestError, match="has 1 slices of"):
        wait(namespace, lambda _: False, lambda: None, wrong)


def test_permissions_that_are_missing_are_listed_with_their_rules(namespace: Namespace) -> None:
    lacking = {("jobs", "create"), ("pods/log", "get")}
    rest = [p for p in needed(ours=True) if (p.resource, p.verb) not in lacking]
    namespace.user("poor", granting_rules(rest))
    [denied] = [c for c in examine(namespace, role="poor").values() if c.name == "permissions"]
    assert denied.outcome is Outcome.FAILED
    assert isinstance(denied.error, AccessDenied)
    for text in (denied.found, denied.fix):
        assert "jobs" in text
        assert "pods/log" in text
        assert "secrets" not in text
    # It comes before that there is no service.
    checks = examine(namespace, role="nobody")
    assert isinstance(checks["permissions"].error, AccessDenied)
    assert isinstance(checks["service"].error, AccessDenied)


def test_a_token_that_ended_is_a_matter_of_credentials(namespace: Namespace) -> None:
    namespace.testbed.end_token(namespace.user("tenant"))
    found = examine(namespace)
    assert isinstance(found["credentials"].error, AccessDenied)
    assert [*found] == ["credentials"]


def test_no_service_and_several(namespace: Namespace) -> None:
    assert isinstance(examine(namespace)["service"].error, ServiceNotFound)
    for name in ("one", "two"):
        namespace.create(JOBSETS, jobset(namespace, name))
    error = examine(namespace)["service"].error
    assert isinstance(error, ServiceNotFound)
    assert error.candidates == (
        "one-pathways-head-0-0.one:29001",
        "two-pathways-head-0-0.two:29001",
    )
    suspended = jobset(namespace, "three")
    suspended["spec"]["suspend"] = True
    namespace.create(JOBSETS, suspended)
    check = examine(namespace, address="three-pathways-head-0-0.three:29001")["service"]
    assert isinstance(check.error, ServiceNotReady)
    assert "suspended" in check.found


def test_the_schedulers_reason_is_reported_while_waiting(namespace: Namespace) -> None:
    service = deploy_service(namespace, {KIND: 1}, ready=False)
    service.wait_for_head()
    told = wait(
        namespace,
        lambda news: "no node takes it" in (news.reason or ""),
        lambda: namespace.add_nodes({KIND: 1}, cpu_nodes=0),
    )
    [*_, said] = [news for news in told if "no node takes it" in (news.reason or "")]
    assert said.kind == "service.waiting"
    assert "nodes are available" in str(said.data["pods"])
    assert (said.data["ready"], said.data["wanted"]) == (0, 1)


def test_a_head_that_crashes_shows_its_last_lines(namespace: Namespace) -> None:
    wanted = jobset(namespace)
    for job in wanted["spec"]["replicatedJobs"]:
        for container in job["template"]["spec"]["template"]["spec"]["containers"]:
            # As services have it that others deploy: the pod's status has no log.
            del container["terminationMessagePolicy"]
    namespace.create(JOBSETS, wanted)
    request = session_request(
        "isc-proxy-a", KIND, proxy_server_image="shared-pathways-service/proxy_server:1"
    )
    told = []
    with pytest.raises(ServiceNotReady, match="JobSet was deleted"):
        told = wait(
            namespace,
            lambda news: "this image ends with 3" in (news.reason or ""),
            lambda: namespace.delete(JOBSETS, "pathways"),
            request,
        )
    assert told == []  # it raised, and did not time out


def test_a_quota_without_room_for_pods_is_reported(namespace: Namespace) -> None:
    namespace.set_quota({"pods": "0"})
    namespace.create(JOBSETS, jobset(namespace))
    request = session_request(
        "isc-proxy-a", KIND, proxy_server_image="shared-pathways-service/proxy_server:1"
    )
    namespace.wait_until(
        "events",
        lambda events: any(event["reason"] == "FailedCreate" for event in events),
        what="refusal of the head's pod",
    )
    check = examine(namespace, request)["resource manager"]
    assert "exceeded quota" in check.found
    assert isinstance(check.error, ServiceNotReady)
    assert "the head has no pod" in check.found


def test_a_server_that_is_not_there_is_one_failure(namespace: Namespace) -> None:
    async def look() -> list[Check]:
        config = read_kubeconfig([namespace.kubeconfig_of("tenant")])
        access = dataclasses.replace(access_of_context(config), server="https://127.0.0.1:1")
        async with KubeApi(access) as api:
            return (await Preflight(api, namespace.name, "").examine(REQUEST, 3.0)).checks

    [check] = within(look())
    assert check.name == "API server"
    assert check.outcome is Outcome.FAILED
    assert "127.0.0.1:1" in check.found
    assert "connection refused" in check.found
