"""How many bytes of a connection a link keeps until the peer has passed them on, without I/O.

What an end sends, it keeps: on the way, and at a peer whose local side has not read it yet. So a
window limits the rate to a window per round trip: 8 MiB per 150 ms are 56 MB/s. The window of all
connections therefore grows to twice the bytes that the peer passes on in a round trip, like the
receive buffers of TCP (Fisk and Feng, "Dynamic right-sizing in TCP", 2001). A connection uses more
than the least window only while it leaves as much of the budget to the others (Choudhury and Hahne,
"Dynamic queue length thresholds", 1998), so that those that stop moving do not slow down the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared_pathways_service.tunnel.link.link_frames import LinkViolation
from shared_pathways_service.tunnel.link.pacing import LargestRate

__all__ = ["BUDGET_BYTES", "MAX_CONNECTIONS", "SHARE_BYTES", "WINDOW_BYTES", "Windows"]

#: Open connections; JAX makes a handful.
MAX_CONNECTIONS = 64

#: The least window, and what a peer accepts that names no other in its SYNC.
WINDOW_BYTES = 8 << 20
#: The largest window, in least ones: 32 MiB per 150 ms are 220 MB/s.
_LARGEST = 4
#: Bytes that are kept of all connections before the window of each is `SHARE_BYTES`.
BUDGET_BYTES, SHARE_BYTES = 64 << 20, 1 << 20

#: Round trips of bytes in a window: acknowledgements and local sides do not come evenly.
_ROUND_TRIPS = 2.0
#: Seconds for which the largest rate counts: routes change.
_RATE_S = 30.0


class Windows:
    """The windows of what both ends send.

    Args:
      least_bytes: The least window, the same at both ends.

    Attributes:
      size_bytes: The present window of a connection of this end.
      accepts_bytes: The largest window that this end accepts of its peer.
      peer_accepts_bytes: The one that the peer accepts.
    """

    def __init__(self, least_bytes: int) -> None:
        self.least_bytes = self.size_bytes = self.peer_accepts_bytes = least_bytes
        self.accepts_bytes = _LARGEST * least_bytes
        self._rate = LargestRate(_RATE_S)

    def learn(self, peer_accepts_bytes: int) -> None:
        """Takes what a SYNC of the peer says; 0: it is an end that knows only the least window."""
        self.peer_accepts_bytes = peer_accepts_bytes or self.least_bytes

    def check(self, waiting_bytes: Iterable[int]) -> None:
        """Raises `LinkViolation` if the peer sends more than it may keep of all connections.

        Args:
          waiting_bytes: What has arrived and is not acknowledged, of each connection.
        """
        if sum(waiting_bytes) > MAX_CONNECTIONS * self.least_bytes:
            raise LinkViolation("it sends more than an end keeps of all connections")

    def passed_on(self, count: int, round_trip_s: float, now: float) -> None:
        """Records that the peer has passed bytes on.

        Args:
          count: How many, of any connection.
          round_trip_s: The shortest one.
          now: Seconds on a monotonic clock.
        """
        self._rate.add(count, round_trip_s, now)
        wanted = int(_ROUND_TRIPS * round_trip_s * self._rate.bytes_per_s)
        self.size_bytes = min(max(wanted, self.least_bytes), self.accepts_bytes)

    def room(self, kept_bytes: int, kept_of_all_bytes: int) -> int:
        """Returns how many bytes a connection may send.

        Args:
          kept_bytes: What is kept of it.
          kept_of_all_bytes: What is kept of all connections.
        """
        if kept_of_all_bytes >= BUDGET_BYTES:
            most = min(SHARE_BYTES, self.least_bytes)
        else:
            rest = BUDGET_BYTES - (kept_of_all_bytes - kept_bytes)
            most = min(self.size_bytes, max(self.least_bytes, rest // 2))
        return max(0, min(most, self.peer_accepts_bytes) - kept_bytes)
