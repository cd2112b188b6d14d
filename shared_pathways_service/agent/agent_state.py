"""The client's copy of a session's state, updated by the agent's messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.errors import SharedPathwaysError, from_json
from shared_pathways_service.session.messages import Snapshot

__all__ = ["AgentState"]


@dataclasses.dataclass
class AgentState:
    """The session as the agent last reported it.

    Attributes:
      token: The token that the proxy requires; None: it requires none.
      token_file: The file from which child processes read the token.
      insecure_credentials: Whether the proxy's port accepts plaintext.
      transfer_dir: A directory in memory that this machine shares with the proxy.
      is_remote: Whether the proxy is behind a tunnel.
      refusal: The reason for the session's end, if it is not in the snapshot.
      lingers: Whether the agent's process continues after the end of the session.
      replies: Replies by request number.
    """

    snapshot: Snapshot
    token: str | None = None
    token_file: Path | None = None
    insecure_credentials: bool = True
    transfer_dir: Path | None = None
    is_remote: bool = False
    refusal: SharedPathwaysError | None = None
    has_ended: bool = False
    lingers: bool = False
    replies: dict[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def failure(self) -> SharedPathwaysError | None:
        """The session's error; None if it did not fail."""
        if self.snapshot.error is not None:
            return from_json(self.snapshot.error)
        return self.refusal

    def update(self, message: Mapping[str, Any]) -> None:
        """Processes a message other than an event; ignores unknown types."""
        match message["type"]:
            case "state":
                self.snapshot = Snapshot.from_json(message["state"])
            case "proxy":
                self.token = message["token"]
                self.token_file = _path(message["token_file"])
                self.insecure_credentials = message["insecure_credentials"]
                self.transfer_dir = _path(message["transfer_dir"])
                self.is_remote = message["is_remote"]
            case "reply":
                self.replies[message["id"]] = message
            case "ended":
                if message.get("state"):
                    self.snapshot = Snapshot.from_json(message["state"])
                if message.get("error"):
                    self.refusal = from_json(message["error"])
                self.lingers = bool(message.get("lingers"))
                self.has_ended = True
            case _:
                pass


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
