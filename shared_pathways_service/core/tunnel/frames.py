"""Messages of the port-forward sub-protocol, told apart.

The first byte of a message is its channel: 0 carries the port's bytes both ways, 1 what went wrong
at the far end, as text. Before anything else the server sends one message on each channel that
holds the number of the port, two bytes, little-endian (Kubernetes,
`k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go`). The sub-protocol knows no half-close.
"""

from __future__ import annotations

from shared_pathways_service.errors import TunnelError

__all__ = ["DATA", "ERROR", "SUBPROTOCOL", "Channels"]

#: The WebSocket sub-protocol of a port-forward with one byte for the channel.
SUBPROTOCOL = "v4.channel.k8s.io"
DATA = 0
ERROR = 1
_PREFACE_BYTES = 2


class Channels:
    """Takes the messages of one forwarded port."""

    def __init__(self) -> None:
        self._prefaced: set[int] = set()

    def receive(self, message: memoryview) -> memoryview:
        """Takes one message.

        Args:
          message: As it came, its channel first.

        Returns:
          Bytes of the port, none for a message that carries none.

        Raises:
          TunnelError: The far end could not reach the port, or lost it, or does not speak the
            sub-protocol; `cause` is what it said.
        """
        if not message:
            raise _violated("a message without a channel")
        channel, body = message[0], message[1:]
        if channel not in (DATA, ERROR):
            raise _violated(f"a message on channel {channel}")
        if channel not in self._prefaced:
            if len(body) != _PREFACE_BYTES:
                raise _violated(f"channel {channel} began with {len(body)} bytes, not the port")
            self._prefaced.add(channel)
            return body[:0]
        if channel == DATA:
            return body
        cause = bytes(body).decode(errors="replace").strip()
        raise TunnelError(f"the port-forward failed: {cause}", cause=cause)


def _violated(what: str) -> TunnelError:
    cause = f"the server broke the port-forward protocol: {what}"
    return TunnelError(cause, cause=cause)
