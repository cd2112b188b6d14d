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

#: A client's first bytes of TLS 1.2 and later: a record, and in it a hello that goes on.
_TLS_HELLO: Final = bytes.fromhex("1603010200010001fc0303")
#: Calls that one connection opens; more of them make an attack of fewer connections.
_STREAMS: Final = 20
#: Bytes that are announced: what every server takes, and what none does.
_LONG, _GIANT = 1 << 20, 0xFFFF_FFFF
_SOME: Final = bytes(1000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A server, and what its methods are called.

    Attributes:
      address: ``unix:/path`` or ``host:port``.
      unary: The path of a method of one request.
      stream: That of a method whose requests are a stream, or whose answers are.
      request: A request for `unary`, as it should be.
      forged: Paths, metadata and requests that name what is another tenant's.
      metadata: Shown with each call, e.g. the attacker's own token.
    """

    address: str
    unary: str
    stream: str
    request: bytes = b""
    forged: tuple[tuple[str, tuple[tuple[str, str | bytes], ...], bytes], ...] = ()
    metadata: tuple[tuple[str, str | bytes], ...] = ()


class Attack(ABC):
    """One attacker; use as a context manager, which holds it up to its end.

    Args:
      target: Whom it harms.
      size: Connections that it holds.

    Attributes:
      name: What it is called.
      made: Connections that were made.
      refused: Those that the server closed, or never took.
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
        """Takes what came; returns the connections, those included that the server has closed."""
        for peer in self._peers:
            self._take(peer)
        return list(self._peers)

    def press(self) -> None:
        """Does it once more: takes what came, makes up for connections that are gone, goes on."""
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
        """What is done on a connection that was just made."""

    def go_on(self, peer: Peer) -> None:  # noqa: B027 - nothing, for those that only hold
        """What is done on it again and again; by default nothing."""

    def _fill(self) -> None:
        while len(self._peers) < self.size:
            try:
                peer = Peer(self.target.address)
            except OSError:
                # A full queue of the listener's, or no descriptors here.
                self.refused += 1
                return
            self.made += 1
            self._peers.append(peer)
            self.begin(peer)


class IdleConnections(Attack):
    """Connections that say nothing."""

    name = "idle connections"

    def begin(self, peer: Peer) -> None:
        """Says nothing."""


class SilentConnections(Attack):
    """Connections that begin as they should, and make no call."""

    name = "connections without calls"

    def begin(self, peer: Peer) -> None:
        """Greets."""
        peer.greet()


class HalfHandshakes(Attack):
    """Connections that begin TLS, or HTTP/2, and stop amid it."""

    name = "half handshakes"

    def begin(self, peer: Peer) -> None:
        """Says the half."""
        peer.send(_TLS_HELLO if self.made % 2 else PREFACE[:10])


class OpenStreams(Attack):
    """Calls that are opened and left: no request comes."""

    name = "open streams"

    def begin(self, peer: Peer) -> None:
        """Opens them."""
        peer.greet()
        self.go_on(peer)

    def go_on(self, peer: Peer) -> None:
        """Opens more."""
        for path in itertools.islice(itertools.cycle(self._paths), _STREAMS):
            peer.open(path, self.target.metadata)

    @property
    def _paths(self) -> tuple[str, str]:
        return self.target.unary, self.target.stream


class LeftStreams(Attack):
    """Calls that are opened and broken off at once, over and over."""

    name = "left streams"

    def begin(self, peer: Peer) -> None:
        """Greets."""
        peer.greet()

    def go_on(self, peer: Peer) -> None:
        """Opens, and breaks off."""
        for path in (self.target.unary, self.target.stream):
            for _ in range(_STREAMS // 2):
                peer.reset(peer.open(path, self.target.metadata))


class AnnouncedMessages(Attack):
    """Messages of an allowed length, of which only the first bytes come."""

    name = "announced messages"
    size_announced: ClassVar[int] = _LONG

    def begin(self, peer: Peer) -> None:
        """Announces one a call."""
        peer.greet()
        for path in (self.target.unary, self.target.stream):
            stream = peer.open(path, self.target.metadata)
            peer.write(stream, announced(self.size_announced) + _SOME)


class GiantMessages(AnnouncedMessages):
    """Messages longer than any server takes."""

    name = "giant messages"
    size_announced = _GIANT

    def go_on(self, peer: Peer) -> None:
        """Announces one more."""
        stream = peer.open(self.target.unary, self.target.metadata)
        peer.write(stream, announced(self.size_announced) + _SOME)


class SlowReaders(Attack):
    """Calls with all that they need, whose answers are never taken."""

    name = "slow readers"

    def begin(self, peer: Peer) -> None:
        """Asks for much, and has no window for it."""
        peer.greet(window=0)
        self.go_on(peer)

    def go_on(self, peer: Peer) -> None:
        """Asks for more."""
        for _ in range(_STREAMS):
            stream = peer.open(self.target.unary, self.target.metadata)
            peer.finish(stream, self.target.request)


class SlowWriters(Attack):
    """Requests that come a byte at a time."""

    name = "slow writers"

    def __init__(self, target: Target, size: int) -> None:
        super().__init__(target, size)
        self._streams: dict[Peer, int] = {}

    def begin(self, peer: Peer) -> None:
        """Begins one."""
        peer.greet()
        self._streams[peer] = peer.open(self.target.unary, self.target.metadata)
        peer.write(self._streams[peer], announced(_LONG))

    def go_on(self, peer: Peer) -> None:
        """Sends a byte."""
        peer.write(self._streams[peer], b"x")

    def _drop(self, peer: Peer) -> None:
        del self._streams[peer]
        super()._drop(peer)


class _Calls(Attack):
    """Whole calls, one after the other; each press waits until those of the last are answered."""

    def begin(self, peer: Peer) -> None:
        """Greets."""
        peer.greet()

    def go_on(self, peer: Peer) -> None:
        """Calls."""
        calls = list(self._calls())
        for path, metadata, message in calls:
            peer.finish(peer.open(path, metadata), message)
        before = peer.seen[ENDED]
        peer.wait(ENDED, times=before + len(calls), timeout_s=1.0)
        self.ended += peer.seen[ENDED] - before

    @abstractmethod
    def _calls(self) -> Iterator[tuple[str, tuple[tuple[str, str | bytes], ...], bytes]]:
        """Yields those of one press."""


class WrongTokens(_Calls):
    """Guesses at the token, as many as the server takes."""

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


#: All of them.
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
