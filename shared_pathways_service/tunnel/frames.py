"""The port-forward sub-protocol in the messages of a WebSocket, without I/O.

The first byte of a message is its channel: 0 carries the port's bytes in both directions, 1 an
error of the far end as text. On each channel the server first sends the number of the port, two
bytes, little-endian (Kubernetes, `k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go`).
There is no half-close and no later version: `v5.channel.k8s.io` is not offered for ports.
"""

from __future__ import annotations

from shared_pathways_service.errors import TunnelError
from shared_pathways_service.tunnel.websocket import BINARY, Piece

__all__ = ["DATA", "ERROR", "SUBPROTOCOL", "Channels"]

SUBPROTOCOL = "v4.channel.k8s.io"
DATA = 0
ERROR = 1

_PORT_BYTES = 2
#: Limit of an error's text; a server that sends more is broken.
_TEXT_BYTES = 4096


class Channels:
    """Processes the messages of one forwarded port."""

    def __init__(self) -> None:
        self._channel = DATA
        self._port_left = {DATA: _PORT_BYTES, ERROR: _PORT_BYTES}
        self._text = bytearray()

    def receive(self, piece: Piece) -> memoryview:
        """Processes a piece of a data message.

        Returns:
          Bytes of the port in the piece; empty if it carries something else.

        Raises:
          TunnelError: The far end could not reach the port or lost it, or does not use the
            sub-protocol; `cause` is its message.
        """
        body = piece.payload
        if piece.begins:
            if piece.opcode != BINARY or not body or body[0] not in self._port_left:
                raise _failed("the server broke the protocol: a message without a channel")
            self._channel = body[0]
            body = body[1:]
        if left := self._port_left[self._channel]:
            self._port_left[self._channel] = max(0, left - len(body))
            body = body[left:]
        if self._channel == DATA:
            return body
        self._text += body[: _TEXT_BYTES - len(self._text)]
        if piece.ends and self._text:
            raise _failed(self._text.decode(errors="replace").strip())
        return body[:0]


def _failed(cause: str) -> TunnelError:
    return TunnelError(f"the port-forward failed: {cause}", cause=cause)
