"""Faults of the way between a client and its proxy, of any length, for tests and for stress."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections.abc import Iterator
from typing import Any

from harness.deadlines import wait_until
from harness.programs import DEADLINE_S
from harness.testbed.link_clients import LinkClient, Report
from harness.testbed.network_namespaces import NetworkNamespace
from harness.testbed.ways import Way
from shared_pathways_service.testing.testbed import Testbed

__all__ = ["Outcome", "api_server_away", "asleep", "cut_at_random", "packets_dropped", "survived"]

#: Seconds between two cuts, at most: several steps, or the middle of a large transfer.
_CUT_S = 0.8
#: Cuts after which a whole step must succeed.
_CUTS_PER_STEP = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a client that survived a fault reports.

    Attributes:
      steps: Steps, all with the right results.
      steps_before: The number of them before the fault.
      losses: How often the link was lost.
      dials: How many dials resumed it.
      longest_loss_s: The longest loss, in seconds.
    """

    steps: int
    steps_before: int
    losses: int
    dials: int
    longest_loss_s: float

    def to_json(self) -> dict[str, Any]:
        """Returns the fields."""
        return dataclasses.asdict(self)


def survived(before: Report, after: Report) -> Outcome:
    """Checks that each loss of the link was followed by its resumption, and that work went on.

    Args:
      before: The client's report before the fault.
      after: Its last report.
    """
    assert after.steps > before.steps, (before, after)
    kinds = after.kinds
    assert kinds == ["link.lost", "link.resumed"] * (len(kinds) // 2), after
    durations = [news.duration_s for news in after.links if news.duration_s is not None]
    return Outcome(
        steps=after.steps,
        steps_before=before.steps,
        losses=len(kinds) // 2,
        dials=after.dials,
        longest_loss_s=round(max(durations, default=0.0), 2),
    )


def cut_at_random(client: LinkClient, way: Way, count: int, draw: random.Random) -> None:
    """Resets all connections of a way at random moments, also while the link is being resumed."""
    for number in range(1, count + 1):
        time.sleep(draw.uniform(0.02, _CUT_S))
        wait_until("a connection to cut", lambda: way.cut() or client.running.has_said)
        if number % _CUTS_PER_STEP == 0 or client.running.has_said:
            client.step()


def api_server_away(testbed: Testbed, seconds: float) -> None:
    """Kills the API server, and starts it again later."""
    testbed.kill_api_server()
    time.sleep(seconds)
    testbed.start_api_server()


def packets_dropped(network: NetworkNamespace, seconds: float) -> int:
    """Drops every packet for a time; returns how many there were."""
    network.drop_packets()
    time.sleep(seconds)
    return network.pass_packets()


@contextlib.contextmanager
def asleep(client: LinkClient, way: Way) -> Iterator[None]:
    """Stops a client and its agent for the length of the block; its connections break meanwhile.

    They cannot be made again before the block ends, as while a laptop is closed.
    """
    way.refuse()
    try:
        with client.stopped():
            wait_until("connections to break", way.cut, DEADLINE_S)
            yield
            way.open()
    finally:
        way.open()
