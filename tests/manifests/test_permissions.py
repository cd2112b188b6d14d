from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.manifests.permissions import (
    Permission,
    access_denied,
    access_review,
    evaluate,
    granting_rules,
    is_allowed,
    needed,
    rules_review,
)

ALL = needed(ours=True)
LOG = Permission(group="", resource="pods/log", verb="get")


def review(*rules: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"status": {"resourceRules": list(rules), "incomplete": False, **status}}


def rule(
    groups: Sequence[str], resources: Sequence[str], verbs: Sequence[str], **more: Any
) -> dict[str, Any]:
    return {
        "apiGroups": list(groups),
        "resources": list(resources),
        "verbs": list(verbs),
        **more,
    }


def test_only_our_images_need_secrets() -> None:
    assert {p.resource for p in ALL} - {p.resource for p in needed(ours=False)} == {"secrets"}


@given(st.sets(st.sampled_from(ALL)))
def test_what_is_granted_is_granted_and_nothing_else(granted: set[Permission]) -> None:
    verdict = evaluate(review(*granting_rules(granted)), ALL)
    assert set(verdict.missing) == set(ALL) - granted
    assert verdict.unknown == ()


@given(st.sets(st.sampled_from(ALL)))
def test_the_proposed_rules_grant_the_missing_permissions(granted: set[Permission]) -> None:
    rules = granting_rules(granted)
    missing = evaluate(review(*rules), ALL).missing
    assert evaluate(review(*rules, *granting_rules(missing)), ALL).missing == ()


@pytest.mark.parametrize(
    ("found", "grants"),
    [
        (rule(["*"], ["*"], ["*"]), True),
        (rule([""], ["*"], ["get"]), True),
        (rule([""], ["*/log"], ["get"]), True),
        (rule([""], ["pods/log"], ["get"]), True),
        (rule([""], ["pods"], ["*"]), False),
        (rule([""], ["pods/*"], ["*"]), False),
        (rule(["batch"], ["*"], ["*"]), False),
        (rule([""], ["pods/log"], ["list"]), False),
        (rule([""], ["pods/log"], ["get"], resourceNames=["other"]), False),
        ({}, False),
        ({"verbs": None, "apiGroups": None, "resources": None}, False),
    ],
)
def test_rules_are_read_as_the_authorizer_reads_them(found: dict[str, Any], grants: bool) -> None:
    assert (evaluate(review(found), [LOG]).missing == ()) is grants


def test_a_rule_for_names_grants_that_name_only_and_never_a_create() -> None:
    named = rule(["batch"], ["jobs"], ["*"], resourceNames=["j"])
    get = Permission(group="batch", resource="jobs", verb="get", name="j")
    create = Permission(group="batch", resource="jobs", verb="create", name="j")
    other = Permission(group="batch", resource="jobs", verb="get", name="k")
    assert evaluate(review(named), [get, create, other]).missing == (create, other)


@pytest.mark.parametrize(
    "answer",
    [
        review(incomplete=True),
        review(evaluationError="webhook authorizer does not support user rule resolution"),
        {},
        {"status": None},
    ],
)
def test_what_the_review_did_not_see_is_asked_for(answer: dict[str, Any]) -> None:
    verdict = evaluate(answer, [LOG])
    assert (verdict.missing, verdict.unknown) == ((), (LOG,))


def test_single_reviews() -> None:
    body = access_review(LOG, "team")
    assert body["kind"] == "SelfSubjectAccessReview"
    assert body["spec"]["resourceAttributes"] == {
        "namespace": "team",
        "verb": "get",
        "resource": "pods",
        "subresource": "log",
    }
    assert is_allowed({"status": {"allowed": True}})
    for refused in ({}, {"status": {"allowed": False}}, {"status": {"allowed": True, "denied": 1}}):
        assert not is_allowed(refused)
    assert rules_review("team")["spec"] == {"namespace": "team"}


def test_the_error_names_the_first_and_the_rules_for_all() -> None:
    missing = [
        Permission(group="batch", resource="jobs", verb="create"),
        Permission(group="batch", resource="jobs", verb="delete"),
        LOG,
    ]
    error = access_denied(missing, "team")
    assert (error.verb, error.resource, error.namespace) == ("create", "jobs", "team")
    for text in ("you", "create jobs", "delete jobs", "get pods/log", "namespace team"):
        assert text in error.message
    rules = [json.loads(line.removeprefix("- ")) for line in error.rule.splitlines()]
    assert rules == [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "delete"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    ]
