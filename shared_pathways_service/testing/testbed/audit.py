"""Reads the API server's audit log: what a user has asked for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

__all__ = ["AUDIT_LOG", "AuditEntry", "read_audit_log"]

#: The log's name in the testbed's directory.
AUDIT_LOG = "audit.log"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """One request.

    Attributes:
      verb: Kubernetes' own, e.g. ``list``.
      uri: With the query.
      resource: With the subresource, e.g. ``pods/log``; empty for what is no resource.
      code: The answer's HTTP status; 0 while there is none.
    """

    verb: str
    uri: str
    resource: str
    code: int

    @property
    def is_watch(self) -> bool:
        """Whether it follows a list, or a log."""
        return self.verb == "watch" or (self.resource == "pods/log" and "follow=true" in self.uri)

    @property
    def is_dial(self) -> bool:
        """Whether it opens a port-forward."""
        return self.resource == "pods/portforward"


def read_audit_log(path: Path, user: str) -> list[AuditEntry]:
    """Returns a user's requests in the order in which they came.

    Args:
      path: The log.
      user: As the API server knows them.
    """
    # What lasts is told of when it begins and when it ends.
    requests: dict[str, AuditEntry] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["user"].get("username") != user:
            continue
        about = event.get("objectRef") or {}
        parts = [about[key] for key in ("resource", "subresource") if about.get(key)]
        requests[event["auditID"]] = AuditEntry(
            verb=event["verb"],
            uri=event["requestURI"],
            resource="/".join(parts),
            code=event.get("responseStatus", {}).get("code", 0),
        )
    return list(requests.values())
