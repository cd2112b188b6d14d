"""The port-forward sub-protocol: what the messages of a WebSocket carry.

The first byte of a message is its channel: 0 carries the port's bytes both ways, 1 what went wrong
at the far end, as text. On each channel the server sends the number of the port first, two bytes,
little-endian (Kubernetes, `k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go`). There is no
half-close, and no later version: what came after it (`v5.channel.k8s.io`) is not offered for ports.
"""

from __future__ import annotations

from shared_pathways_service.errors import TunnelError
from shared_pathways_service.tunnel.websocket import BINARY, Piece

__all__ = ["DATA", "ERROR", "SUBPROTOCOL", "Channels"]

SUBPROTOCOL = "v4.channel.k8s.io"
DATA = 0
ERROR = 1

_PORT_BYTES = 2
#: Of an error's text; a server that sends more has lost its way.
_TEXT_BYTES = 4096


class Channels:
    """Takes the messages of one forwarded port."""

    def __init__(self) -> None:
        self._channel = DATA
        self._port_left = {DATA: _PORT_BYTES, ERROR: _PORT_BYTES}
        self._text = bytearray()

    def receive(self, piece: Piece) -> memoryview:
        """Takes a piece of a data message.

        Returns:
          Bytes of the port, in the piece; none where it carries something else.

        Raises:
          TunnelError: The far end could not reach the port or lost it, or does not speak the
            sub-protocol; `cause` is what it said.
        """
        body = piece.payload
        if piece.begins:
            if piece.opcode != BINARY or not body or body[0] not in self._port_left:
                raise _failed("the server broke the protocol: a message that is for no channel")
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
