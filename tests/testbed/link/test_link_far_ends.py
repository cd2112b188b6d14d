"""Resumable links in a cluster: the far end beside the proxy, and what prevents it."""

from __future__ import annotations

import json

import pytest

from harness.deadlines import wait_until
from harness.testbed.clients import client, nothing_left, proxies
from shared_pathways_service.manifests.names import LINK_CONTAINER, PROXY_CONTAINER
from shared_pathways_service.manifests.permissions import granting_rules, needed
from shared_pathways_service.testing.testbed import DeployedService, Namespace
from tests.testbed.link.conftest import ServiceOf
from tests.testbed.second_reader import are_read_by_the_official_client

RESUMABLE = """
with connecting(link="resumable") as connection:
    import jax, jax.numpy as jnp
    say("runs", value=float(jnp.arange(4.0).sum()))
    say("warned", reasons=[event.reason for event in heard if event.kind == "service.warning"])
    wait_for("leave")
"""

FAILS = """
try:
    connecting(link="resumable").start()
except errors.ProxyFailed as error:
    say("failed", error=error.to_json())
"""


def pod_of_proxy(namespace: Namespace) -> str:
    [name] = [one.split()[1] for one in proxies(namespace) if one.startswith("pods ")]
    return name


def accepted(namespace: Namespace, pod: str) -> dict[str, int] | None:
    """Returns the far end's last report, once it counts a carrier; it writes one in a while."""
    lines = namespace.log(pod, container=LINK_CONTAINER).splitlines()
    reports: list[dict[str, int]] = [
        json.loads(line)["link"] for line in lines if line.startswith("{")
    ]
    return reports[-1] if reports and reports[-1]["accepted"] else None


def test_googles_proxy_is_reached_through_a_sidecar(service_of: ServiceOf) -> None:
    namespace = service_of("googles").namespace
    with client(namespace, RESUMABLE) as running:
        assert running.expect("runs")["value"] == 6.0
        assert running.expect("warned")["reasons"] == []
        pod = pod_of_proxy(namespace)
        assert namespace.processes()[pod].keys() == {LINK_CONTAINER, PROXY_CONTAINER}
        report = wait_until("a report of the link", lambda: accepted(namespace, pod))
        assert (report["port"], report["refused"]) == (29002, 0)
        [program] = [one for one in proxies(namespace) if one.startswith("configmaps ")]
        [secret] = namespace.items("secrets", labelSelector="app=pathways-proxy")
        session = secret["metadata"]["labels"]["sps.dev/session"]
        assert program == f"configmaps {pod.rpartition('-')[0]}-{session[:8]}"
        are_read_by_the_official_client(namespace, *program.split())
        running.tell("leave")
        assert running.wait() == 0
    nothing_left(namespace)


def test_our_proxy_is_reached_through_its_own_far_end(service: DeployedService) -> None:
    namespace = service.namespace
    with client(namespace, RESUMABLE) as running:
        assert running.expect("runs")["value"] == 6.0
        assert running.expect("warned")["reasons"] == []
        assert namespace.processes()[pod_of_proxy(namespace)].keys() == {PROXY_CONTAINER}
        assert not [one for one in proxies(namespace) if one.startswith("configmaps ")]
        running.tell("leave")
        assert running.wait() == 0
    nothing_left(namespace)


def test_the_image_of_the_sidecar_cannot_be_pulled(
    service_of: ServiceOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = service_of("googles").namespace
    monkeypatch.setenv("SPS_LINK_IMAGE", "r.io/python:no-such-tag")
    with client(namespace, FAILS) as running:
        error = running.expect("failed")["error"]
        assert running.wait() == 0
    assert "r.io/python:no-such-tag cannot be pulled (ErrImagePull)" in error["message"]
    assert "SPS_LINK_IMAGE" in error["hint"]
    assert 'link="plain"' in error["hint"]
    nothing_left(namespace)


def test_without_permission_for_the_sidecar_the_link_is_plain(service_of: ServiceOf) -> None:
    namespace = service_of("googles").namespace
    namespace.user("poor", granting_rules(needed(ours=False)))
    with client(namespace, RESUMABLE, role="poor") as running:
        assert running.expect("runs")["value"] == 6.0
        [reason] = running.expect("warned")["reasons"]
        assert reason.startswith("the link is not resumable: you may not create secrets, create ")
        pod = pod_of_proxy(namespace)
        assert namespace.processes()[pod].keys() == {PROXY_CONTAINER}
        assert not namespace.items("secrets")
        running.tell("leave")
        assert running.wait() == 0
    nothing_left(namespace)
