"""Reads a user's requests from the API server's audit log."""

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
      resource: With the subresource, e.g. ``pods/log``; empty for other paths.
      code: The answer's HTTP status; 0 before there is an answer.
    """

    verb: str
    uri: str
    resource: str
    code: int

    @property
    def is_watch(self) -> bool:
        """Whether it watches a list, or follows a log."""
        return self.verb == "watch" or (self.resource == "pods/log" and "follow=true" in self.uri)

    @property
    def is_dial(self) -> bool:
        """Whether it opens a port-forward."""
        return self.resource == "pods/portforward"


def read_audit_log(path: Path, user: str) -> list[AuditEntry]:
    """Returns the requests of a user, by name, in the order of their arrival."""
    # Long requests are logged when they begin and when they end.
    requests: dict[str, AuditEntry] = {}
    data = path.read_bytes()
    # (The last line may still be being written.)
    for line in data[: data.rfind(b"\n") + 1].splitlines():
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
