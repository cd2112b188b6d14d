"""Each way to use up a server: what it holds open, and what it does again and again."""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Final, Self

from shared_pathways_service.testing.attacks.peer import ENDED, PREFACE, Peer, announced

__all__ = [
    "ATTACKS",
    "AnnouncedMessages",
    "Attack",
    "GiantMessages",
    "HalfHandshakes",
    "IdleConnections",
    "LeftStreams",
    "OpenStreams",
    "OtherNames",
    "SilentConnections",
    "SlowReaders",
    "SlowWriters",
    "Target",
    "WrongTokens",
]

#: A client's first bytes of TLS 1.2 and later: a record with an incomplete hello.
_TLS_HELLO: Final = bytes.fromhex("1603010200010001fc0303")
#: Calls per connection.
_STREAMS: Final = 20
#: Announced message sizes in bytes: one that every server accepts, and one that no server does.
_LONG, _GIANT = 1 << 20, 0xFFFF_FFFF
_SOME: Final = bytes(1000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A server and its methods.

    Attributes:
      address: ``unix:/path`` or ``host:port``.
      unary: The path of a method of one request.
      stream: The path of a method that streams requests or answers.
      request: A valid request for `unary`.
      forged: Paths, metadata and requests that name objects of another tenant.
      metadata: Sent with each call, e.g. the attacker's own token.
    """

    address: str
    unary: str
    stream: str
    request: bytes = b""
    forged: tuple[tuple[str, tuple[tuple[str, str | bytes], ...], bytes], ...] = ()
    metadata: tuple[tuple[str, str | bytes], ...] = ()


class Attack(ABC):
    """One attacker; use as a context manager, which closes its connections at the end.

    Args:
      target: The attacked server.
      size: The number of connections to hold open.

    Attributes:
      name: Its name.
      made: Connections that were made.
      refused: Connections that the server closed or did not accept.
      ended: Calls that the server ended.
    """

    name: ClassVar[str]

    def __init__(self, target: Target, size: int) -> None:
        self.target = target
        self.size = size
        self.made = 0
        self.refused = 0
        self.ended = 0
        self._peers: list[Peer] = []

    def __enter__(self) -> Self:
        self._fill()
        return self

    def __exit__(self, *_exc: object) -> None:
        for peer in self._peers:
            peer.close()
        self._peers.clear()

    def read(self) -> list[Peer]:
        """Reads received data; returns the connections, including those that the server closed."""
        for peer in self._peers:
            self._take(peer)
        return list(self._peers)

    def press(self) -> None:
        """Runs one round: reads received data, replaces lost connections, repeats the action."""
        living = []
        for peer in self.read():
            if peer.closed:
                self._drop(peer)
            else:
                living.append(peer)
        self._peers = living
        self._fill()
        for peer in self._peers:
            self.go_on(peer)

    def _drop(self, peer: Peer) -> None:
        peer.close()
        self.refused += 1

    def _take(self, peer: Peer) -> None:
        before = peer.seen[ENDED]
        peer.read()
        self.ended += peer.seen[ENDED] - before

    @abstractmethod
    def begin(self, peer: Peer) -> None:
        """Acts once on a new connection."""

    def go_on(self, peer: Peer) -> None:  # noqa: B027 - optional
        """Acts on a connection in each round; by default does nothing."""

    def _fill(self) -> None:
        while len(self._peers) < self.size:
            try:
                peer = Peer(self.target.address)
            except OSError:
                # The listener's queue is full, or this process is out of descriptors.
                self.refused += 1
                return
            self.made += 1
            self._peers.append(peer)
            self.begin(peer)


class IdleConnections(Attack):
    """Connections that send nothing."""

    name = "idle connections"

    def begin(self, peer: Peer) -> None:
        """Does nothing."""


class SilentConnections(Attack):
    """Connections that begin HTTP/2 correctly, and make no call."""

    name = "connections without calls"

    def begin(self, peer: Peer) -> None:
        """Sends the preface."""
        peer.greet()


class HalfHandshakes(Attack):
    """Connections that stop in the middle of a TLS or HTTP/2 handshake."""

    name = "half handshakes"

    def begin(self, peer: Peer) -> None:
        """Sends half of the handshake."""
        peer.send(_TLS_HELLO if self.made % 2 else PREFACE[:10])


class OpenStreams(Attack):
    """Calls that are opened, but never send a request."""

    name = "open streams"

    def begin(self, peer: Peer) -> None:
        """Opens calls."""
        peer.greet()
        self.go_on(peer)

    def go_on(self, peer: Peer) -> None:
        """Opens more calls."""
        for path in itertools.islice(itertools.cycle(self._paths), _STREAMS):
            peer.open(path, self.target.metadata)

    @property
    def _paths(self) -> tuple[str, str]:
        return self.target.unary, self.target.stream


class LeftStreams(Attack):
    """Calls that are opened and reset at once, repeatedly."""

    name = "left streams"

    def begin(self, peer: Peer) -> None:
        """Sends the preface."""
        peer.greet()

    def go_on(self, peer: Peer) -> None:
        """Opens and resets calls."""
        for path in (self.target.unary, self.target.stream):
            for _ in range(_STREAMS // 2):
                peer.reset(peer.open(path, self.target.metadata))


class AnnouncedMessages(Attack):
    """Messages of an allowed length, of which only the first bytes are sent."""

    name = "announced messages"
    size_announced: ClassVar[int] = _LONG

    def begin(self, peer: Peer) -> None:
        """Announces one message per call."""
        peer.greet()
        for path in (self.target.unary, self.target.stream):
            stream = peer.open(path, self.target.metadata)
            peer.write(stream, announced(self.size_announced) + _SOME)


class GiantMessages(AnnouncedMessages):
    """Messages longer than any server accepts."""

    name = "giant messages"
    size_announced = _GIANT

    def go_on(self, peer: Peer) -> None:
        """Announces another message."""
        stream = peer.open(self.target.unary, self.target.metadata)
        peer.write(stream, announced(self.size_announced) + _SOME)


class SlowReaders(Attack):
    """Complete calls whose answers are never read."""

    name = "slow readers"

    def begin(self, peer: Peer) -> None:
        """Sends calls, without a window for the answers."""
        peer.greet(window=0)
        self.go_on(peer)

    def go_on(self, peer: Peer) -> None:
        """Sends more calls."""
        for _ in range(_STREAMS):
            stream = peer.open(self.target.unary, self.target.metadata)
            peer.finish(stream, self.target.request)


class SlowWriters(Attack):
    """Requests that are sent one byte at a time."""

    name = "slow writers"

    def __init__(self, target: Target, size: int) -> None:
        super().__init__(target, size)
        self._streams: dict[Peer, int] = {}

    def begin(self, peer: Peer) -> None:
        """Begins a request."""
        peer.greet()
        self._streams[peer] = peer.open(self.target.unary, self.target.metadata)
        peer.write(self._streams[peer], announced(_LONG))

    def go_on(self, peer: Peer) -> None:
        """Sends one byte."""
        peer.write(self._streams[peer], b"x")

    def _drop(self, peer: Peer) -> None:
        del self._streams[peer]
        super()._drop(peer)


class _Calls(Attack):
    """Complete calls; each round waits for the answers of the previous one."""

    def begin(self, peer: Peer) -> None:
        """Sends the preface."""
        peer.greet()

    def go_on(self, peer: Peer) -> None:
        """Sends the calls of a round."""
        calls = list(self._calls())
        for path, metadata, message in calls:
            peer.finish(peer.open(path, metadata), message)
        before = peer.seen[ENDED]
        peer.wait(ENDED, times=before + len(calls), timeout_s=1.0)
        self.ended += peer.seen[ENDED] - before

    @abstractmethod
    def _calls(self) -> Iterator[tuple[str, tuple[tuple[str, str | bytes], ...], bytes]]:
        """Yields the calls of one round."""


class WrongTokens(_Calls):
    """Guesses of the token, as fast as the server answers them."""

    name = "wrong tokens"

    def __init__(self, target: Target, size: int) -> None:
        super().__init__(target, size)
        self._guesses = itertools.count()

    def _calls(self) -> Iterator[tuple[str, tuple[tuple[str, str | bytes], ...], bytes]]:
        for _ in range(_STREAMS):
            guess = (("authorization", f"Bearer guess-{next(self._guesses)}"),)
            yield self.target.unary, guess, self.target.request


class OtherNames(_Calls):
    """Requests that name other tenants, their sessions and connections."""

    name = "other tenants' names"

    def _calls(self) -> Iterator[tuple[str, tuple[tuple[str, str | bytes], ...], bytes]]:
        for path, metadata, message in self.target.forged:
            yield path, (*self.target.metadata, *metadata), message


#: All attacks.
ATTACKS: Final[tuple[type[Attack], ...]] = (
    IdleConnections,
    SilentConnections,
    HalfHandshakes,
    OpenStreams,
    LeftStreams,
    AnnouncedMessages,
    GiantMessages,
    SlowReaders,
    SlowWriters,
    WrongTokens,
    OtherNames,
)
