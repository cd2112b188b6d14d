"""Opens a carrier: both ends prove that they know the session's token, without sending it.

    far  → near   GREETING: magic, the far end's incarnation, a nonce
    near → far    HELLO: magic, session, whether it is new, a nonce, proof
    far  → near   ANSWER: result, proof

A proof is an HMAC-SHA256 over both nonces, with the token as its key, so that a recorded handshake
opens nothing. The incarnation is random for each start of the far end: after a restart it has no
buffers of earlier sessions.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import hmac
import struct

from shared_pathways_service.tunnel.link.link_frames import LinkViolation

__all__ = [
    "ANSWER_BYTES",
    "GREETING_BYTES",
    "HELLO_BYTES",
    "ID_BYTES",
    "Greeting",
    "Hello",
    "Result",
    "answer",
    "check_answer",
    "check_hello",
    "hello",
]

#: Changes with every incompatible version of the protocol.
_MAGIC = b"SPSLINK1"
#: Bytes of sessions' names, incarnations and nonces.
ID_BYTES = 16

_GREETING = struct.Struct(f">8s{ID_BYTES}s{ID_BYTES}s")
_HELLO = struct.Struct(f">8s{ID_BYTES}s?{ID_BYTES}s32s")
_ANSWER = struct.Struct(">B32s")
GREETING_BYTES, HELLO_BYTES, ANSWER_BYTES = _GREETING.size, _HELLO.size, _ANSWER.size


class Result(enum.IntEnum):
    """The far end's decision.

    Attributes:
      ACCEPTED: Frames follow.
      UNKNOWN: The session is not new, and this end does not know it.
      TOO_MANY: Too many sessions or carriers are open.
    """

    ACCEPTED = 0
    UNKNOWN = 1
    TOO_MANY = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Greeting:
    """The far end's first message.

    Attributes:
      incarnation: Random for each start of the far end.
      nonce: Random for each carrier.
    """

    incarnation: bytes
    nonce: bytes

    def encode(self) -> bytes:
        """Returns the message."""
        return _GREETING.pack(_MAGIC, self.incarnation, self.nonce)

    @classmethod
    def decode(cls, data: bytes) -> Greeting:
        """Raises `LinkViolation` if the other side is not the far end of a link."""
        magic, incarnation, nonce = _GREETING.unpack(data)
        if magic != _MAGIC:
            raise LinkViolation("this is not the far end of a link, or one of another version")
        return cls(incarnation, nonce)


@dataclasses.dataclass(frozen=True, slots=True)
class Hello:
    """The near end's first message, whose proof is checked.

    Attributes:
      session: Random for each session.
      is_new: Whether it begins.
      nonce: Random for each carrier.
    """

    session: bytes
    is_new: bool
    nonce: bytes


def hello(token: bytes, greeting: Greeting, mine: Hello) -> bytes:
    """Returns the near end's message."""
    proof = _proof(token, b"near", greeting, mine)
    return _HELLO.pack(_MAGIC, mine.session, mine.is_new, mine.nonce, proof)


def check_hello(token: bytes, greeting: Greeting, data: bytes) -> Hello | None:
    """Returns the near end's message; None if it does not know the token."""
    magic, session, is_new, nonce, proof = _HELLO.unpack(data)
    theirs = Hello(session, is_new, nonce)
    is_right = hmac.compare_digest(proof, _proof(token, b"near", greeting, theirs))
    return theirs if is_right and magic == _MAGIC else None


def answer(token: bytes, greeting: Greeting, theirs: Hello, result: Result) -> bytes:
    """Returns the far end's decision."""
    return _ANSWER.pack(result, _proof(token, b"far%d" % result, greeting, theirs))


def check_answer(token: bytes, greeting: Greeting, mine: Hello, data: bytes) -> Result:
    """Returns the far end's decision.

    Raises:
      LinkViolation: The far end does not know the token.
    """
    number, proof = _ANSWER.unpack(data)
    if not hmac.compare_digest(proof, _proof(token, b"far%d" % number, greeting, mine)):
        raise LinkViolation("the far end does not know the session's token")
    return Result(number)


def _proof(token: bytes, role: bytes, greeting: Greeting, hello: Hello) -> bytes:
    text = b"|".join(
        (role, greeting.encode(), hello.session, b"n" if hello.is_new else b"r", hello.nonce)
    )
    return hmac.digest(token, text, hashlib.sha256)
