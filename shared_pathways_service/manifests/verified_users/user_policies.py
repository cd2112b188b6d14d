"""Builds the admission policies by which an API server vouches for the user of a proxy's pod.

The user is an annotation of the pod. A pod has it from whoever creates the pod, or from the
template of its Job: both are checked against the user of the request when it is created, and must
not change later. A team is one more annotation, and an RBAC permission (the verb ``use`` on
``teams.sps.dev``).
"""

from __future__ import annotations

from typing import Any, Final

from shared_pathways_service.manifests.names import (
    ANNOTATION_VERIFIED_TEAM,
    ANNOTATION_VERIFIED_USER,
)
from shared_pathways_service.manifests.verified_users.admission_parts import policy_with_binding

__all__ = ["POLICIES", "user_policies"]

#: The policies' names, which are those of their bindings too.
POLICIES: Final = ("shared-pathways-users-of-jobs", "shared-pathways-users-of-pods")

_ANNOTATIONS: Final = {"user": ANNOTATION_VERIFIED_USER, "team": ANNOTATION_VERIFIED_TEAM}

#: The Job controller, with an account of its own or with that of all controllers. The others have
#: that account too, but set other owners.
_JOB_CONTROLLERS: Final = (
    "system:serviceaccount:kube-system:job-controller",
    "system:kube-controller-manager",
)
_MADE_FOR_JOB: Final = (
    f"(request.userInfo.username in {list(_JOB_CONTROLLERS)} && "
    "object.metadata.?ownerReferences.orValue([]).exists(o, o.apiVersion == 'batch/v1' && "
    "o.kind == 'Job' && o.?controller.orValue(false)))"
)
#: What a controller makes names the user of a template that others wrote.
_OF_A_CONTROLLER: Final = (
    "object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false))"
)
_ALLOWED_TEAM: Final = (
    "authorizer.group('sps.dev').resource('teams').namespace(request.namespace)"
    ".name(variables.team).check('use').allowed()"
)
_IS_NEW: Final = "request.operation == 'CREATE'"


def user_policies() -> list[dict[str, Any]]:
    """Returns the policies and their bindings, for all namespaces of a cluster."""
    jobs, pods = POLICIES
    return [
        *_policy(jobs, "batch", ["jobs"], "spec.template.?metadata", vouched=()),
        # (With their subresources, as a write of the status may change annotations, too.)
        *_policy(pods, "", ["pods", "pods/*"], "?metadata", vouched=(_MADE_FOR_JOB,)),
    ]


def _policy(
    name: str, group: str, resources: list[str], path: str, *, vouched: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Returns a policy and its binding.

    Args:
      name: Their name.
      group: The API group of the resources.
      resources: The checked resources.
      path: From the object to the metadata with the annotations.
      vouched: Conditions under which an earlier check vouches for the annotations.
    """
    new, old = (
        {
            what: f"{thing}.{path}.?annotations[?'{annotation}'].orValue('')"
            for what, annotation in _ANNOTATIONS.items()
        }
        for thing in ("object", "oldObject")
    )
    names_a_user = [
        *(f"{value} != ''" for value in new.values()),
        *(f"oldObject != null && {value} != ''" for value in old.values()),
    ]
    spec = {
        "matchConditions": [{"name": "names-a-user", "expression": " || ".join(names_a_user)}],
        "variables": [{"name": what, "expression": expression} for what, expression in new.items()],
        "validations": _validations(old, vouched),
    }
    return policy_with_binding(name, group, resources, spec)


def _validations(old: dict[str, str], vouched: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns the checks of a policy.

    Args:
      old: The expressions of the old user and team.
      vouched: See `_policy`.
    """
    passed = " || ".join([f"!({_IS_NEW})", *vouched])
    unchanged = " && ".join(f"variables.{what} == {value}" for what, value in old.items())
    return [
        {
            "expression": f"{passed} || "
            f"(variables.user == request.userInfo.username && !{_OF_A_CONTROLLER})",
            "messageExpression": f"'the annotation {ANNOTATION_VERIFIED_USER} must be your user "
            "name, ' + request.userInfo.username + ', and no controller may own the object'",
            "reason": "Forbidden",
        },
        {
            "expression": f"{passed} || variables.team == '' || {_ALLOWED_TEAM}",
            "messageExpression": "request.userInfo.username + ' is not in team ' + variables.team "
            "+ ': this needs the verb use on teams.sps.dev of this name in namespace ' + "
            "request.namespace",
            "reason": "Forbidden",
        },
        {
            "expression": f"{_IS_NEW} || ({unchanged})",
            "message": f"the annotations {' and '.join(_ANNOTATIONS.values())} must not change",
            "reason": "Forbidden",
        },
    ]
