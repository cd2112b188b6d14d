"""Who may do what, which priorities there are, and who would lose something."""

from __future__ import annotations

import json

import pytest

from shared_pathways_service.api.priorities import PRIORITIES
from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy, in_use, tenants_of
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.names import Holder
from shared_pathways_service.manifests.permissions import evaluate, needed
from shared_pathways_service.manifests.priority_classes import (
    READING,
    priority_classes,
    priority_denied,
    priority_of,
)
from shared_pathways_service.manifests.rbac import Subject, operator_rbac, tenant_rbac


def test_a_tenant_may_connect_and_an_operator_may_too() -> None:
    for made in (tenant_rbac("a"), operator_rbac("a")):
        role, binding, wide, wide_binding = made
        review = {"status": {"resourceRules": role["rules"], "incomplete": False}}
        assert not evaluate(review, needed(ours=True)).missing
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert wide_binding["roleRef"]["name"] == wide["metadata"]["name"]
        # Bindings of several namespaces' users do not clash.
        assert wide_binding["metadata"]["name"].endswith("-a")


def test_a_tenant_creates_no_service_and_drains_no_node() -> None:
    granted = [
        (resource, verb)
        for role in tenant_rbac("a")
        for rule in role.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert ("jobsets", "list") in granted
    assert not {("jobsets", "create"), ("jobsets", "delete"), ("nodes", "patch")} & set(granted)
    assert "*" not in {word for pair in granted for word in pair}


def test_rights_for_pages_are_granted_on_request_alone() -> None:
    def granted(*, pages: bool) -> set[tuple[str, str]]:
        role, *_ = operator_rbac("a", pages=pages)
        return {
            (resource, verb)
            for rule in role["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    usual = granted(pages=False)
    assert {resource for resource, _ in granted(pages=True) - usual} == {"deployments", "services"}
    # None may change accounts and roles, which others may use.
    for resource in ("serviceaccounts", "roles", "rolebindings"):
        assert not {(resource, "patch"), (resource, "update")} & granted(pages=True)


def test_service_accounts_are_written_with_their_namespace() -> None:
    account = Subject.account("ci:robot", field="--service-account")
    assert account.manifest() == {"kind": "ServiceAccount", "name": "robot", "namespace": "ci"}
    for wrong in ("robot", ":robot", "ci:", "a:b:c"):
        with pytest.raises(InvalidRequestError):
            Subject.account(wrong, field="--service-account")


def test_priorities_are_the_clusters() -> None:
    classes = [*priority_classes(), {"metadata": {"name": "system-node-critical"}, "value": 1}]
    for name, value in PRIORITIES.items():
        assert priority_of(name, classes, field="x") == value
    with pytest.raises(InvalidRequestError) as caught:
        priority_of("urgent", classes, field="--priority-class")
    assert caught.value.field == "--priority-class"
    assert caught.value.expected.endswith(": high-priority-job, low-priority-job")
    with pytest.raises(InvalidRequestError, match="it has none"):
        priority_of("urgent", [], field="x")


def test_a_tenant_may_read_the_priorities_that_it_may_name() -> None:
    for made in (tenant_rbac("a"), operator_rbac("a")):
        _, _, wide, _ = made
        assert not evaluate({"status": {"resourceRules": wide["rules"]}}, READING).missing
    denied = priority_denied("urgent")
    assert (denied.verb, denied.resource, denied.namespace) == ("get", "priorityclasses", "")
    assert "urgent" in denied.message
    assert "get priorityclasses, list priorityclasses" in denied.message
    # What is proposed is what is rendered, and who may not read is told what works all the same.
    assert [json.loads(line.removeprefix("- ")) for line in denied.rule.splitlines()] == [
        rule for rule in tenant_rbac("a")[2]["rules"] if rule["resources"] == ["priorityclasses"]
    ]
    for way in ("ClusterRole", "a number", *PRIORITIES):
        assert way in denied.hint


def proxy(name: str, service: str, state: str) -> KnownProxy:
    holder = Holder(
        name=name, user="ada", host="laptop", team="", service=service, instances="tpuv6e:2x2=2"
    )
    return KnownProxy(
        holder=holder, uid=name, namespace="a", session=name, pid=1, state=state, since=""
    )


def test_tenants_are_running_or_starting_proxies() -> None:
    found = [
        proxy("running", "pw", "running"),
        proxy("starting", "pw", "starting"),
        proxy("untold", "", "running"),
        proxy("ended", "pw", "ended"),
        proxy("deleting", "pw", "deleting"),
        proxy("others", "other", "running"),
    ]
    tenants = tenants_of("pw", found)
    assert [one.name for one in tenants] == ["running", "starting", "untold"]
    error = in_use("pw", tenants[:1], hint="wait")
    assert error.holders == ("ada@laptop: 2 x tpuv6e:2x2",)
    assert "running (ada@laptop: 2 x tpuv6e:2x2)" in error.message
