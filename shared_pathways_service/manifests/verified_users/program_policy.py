"""Builds the admission policy that lets a pod mount only its own user's compiled programs.

The user is the annotation for which `user_policies` vouches.
"""

from __future__ import annotations

from typing import Any, Final

from shared_pathways_service.manifests.names import ANNOTATION_VERIFIED_USER
from shared_pathways_service.manifests.verified_users.admission_parts import policy_with_binding
from shared_pathways_service.manifests.verified_users.program_parts import (
    CLAIM_SUFFIX,
    FOLDER_PREFIX,
    PROGRAMS_GROUP,
)

__all__ = ["PROGRAM_POLICY", "program_policy"]

#: The policy's name, which is that of its binding too.
PROGRAM_POLICY: Final = "shared-pathways-compiled-programs"

_VOLUMES: Final = "object.spec.?volumes.orValue([])"
_HAS_PROGRAMS: Final = f"v.?persistentVolumeClaim.?claimName.orValue('').endsWith('{CLAIM_SUFFIX}')"
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
_SECURITY: Final = "object.spec.?securityContext"


def program_policy() -> list[dict[str, Any]]:
    """Returns the policy and its binding, for all namespaces of a cluster."""
    annotation = f"object.metadata.?annotations[?'{ANNOTATION_VERIFIED_USER}'].orValue('')"
    # (An escaped name is one path component, and another one for each user.)
    escaped = "variables.user.replace('%', '%25').replace('/', '%2F')"
    own_folder = " && ".join(
        f"object.spec.?{containers}.orValue([]).all(c, c.?volumeMounts.orValue([]).all(m, "
        "!(m.name in variables.volumes) || m.?subPath.orValue('') == variables.folder))"
        for containers in _CONTAINERS
    )
    group = (
        f"{_SECURITY}.?fsGroup.orValue({PROGRAMS_GROUP}) == {PROGRAMS_GROUP} && "
        f"{_SECURITY}.?fsGroupChangePolicy.orValue('') == 'OnRootMismatch'"
    )
    spec = {
        "matchConditions": [
            {"name": "mounts-programs", "expression": f"{_VOLUMES}.exists(v, {_HAS_PROGRAMS})"}
        ],
        "variables": [
            {"name": "user", "expression": annotation},
            {"name": "folder", "expression": f"'{FOLDER_PREFIX}' + {escaped}"},
            {
                "name": "volumes",
                "expression": f"{_VOLUMES}.filter(v, {_HAS_PROGRAMS}).map(v, v.name)",
            },
        ],
        "validations": [
            {
                "expression": f"variables.user != '' && {own_folder}",
                "messageExpression": f"'of a claim *{CLAIM_SUFFIX} a pod may mount only the folder "
                f"(subPath) of its {ANNOTATION_VERIFIED_USER}, ' + variables.folder",
                "reason": "Forbidden",
            },
            {
                "expression": group,
                "message": f"with a claim *{CLAIM_SUFFIX} a pod must have fsGroup "
                f"{PROGRAMS_GROUP} and fsGroupChangePolicy OnRootMismatch",
                "reason": "Forbidden",
            },
        ],
    }
    return policy_with_binding(PROGRAM_POLICY, "", ["pods", "pods/ephemeralcontainers"], spec)
