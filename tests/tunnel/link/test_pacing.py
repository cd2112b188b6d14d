"""What a link has under way, over a simulated bottleneck with a queue in front of it."""

from __future__ import annotations

import random
from collections import deque

import pytest

from shared_pathways_service.tunnel.link.pacing import Pacing

PIECE = 32 << 10
WINDOW = 8 << 20


def transfer(
    pacing: Pacing,
    *,
    rate: float,
    trip_s: float,
    seconds: float,
    late_s: float = 0.0,
    starts_at: float = 0.0,
) -> tuple[float, float]:
    """Sends as much as the limit allows.

    Args:
      rate: Bytes per second of the bottleneck.
      trip_s: The round trip without a queue.
      seconds: Simulated; the figures are of the second half.
      late_s: By how much acknowledgements are read late at most: those of a third of the time.
      starts_at: The time on the clock.

    Returns:
      The share of the rate that was used, and the mean seconds in the queue.
    """
    acks: deque[tuple[float, float]] = deque()  # when each comes, and when its piece was sent
    now = free_at = starts_at
    arrived, waited = 0, []
    dice = random.Random(1)
    while now < starts_at + seconds:
        while len(acks) * PIECE < pacing.limit_bytes:
            free_at = max(now, free_at) + PIECE / rate
            acks.append((free_at + trip_s, now))
        now = max(now, acks[0][0]) + (late_s * dice.random() if dice.random() < 1 / 3 else 0.0)
        while acks and acks[0][0] <= now:
            came_at, sent_at = acks[0]
            pacing.on_ack(sent_at, PIECE, len(acks) * PIECE, now)
            acks.popleft()
            if now > starts_at + seconds / 2:
                arrived += PIECE
                waited.append(came_at - sent_at - trip_s - PIECE / rate)
    return arrived / (rate * seconds / 2), sum(waited) / len(waited)


@pytest.mark.parametrize("trip_s", [0.001, 0.02, 0.15])
@pytest.mark.parametrize("rate", [2.5e6, 25e6, 250e6])
def test_the_bottleneck_is_used_and_its_queue_stays_short(rate: float, trip_s: float) -> None:
    used, waited = transfer(Pacing(WINDOW), rate=rate, trip_s=trip_s, seconds=20.0)
    assert used > min(0.9, 0.9 * WINDOW / (rate * trip_s))
    assert waited < 0.01 + 2 * trip_s + 4 * PIECE / rate


def test_a_faster_route_is_found_out() -> None:
    pacing = Pacing(WINDOW)
    transfer(pacing, rate=2.5e6, trip_s=0.15, seconds=20.0)
    slow = pacing.limit_bytes
    used, _ = transfer(pacing, rate=250e6, trip_s=0.02, seconds=20.0)
    assert used > 0.9
    assert pacing.limit_bytes > slow


@pytest.mark.parametrize("late_s", [0.02, 0.06])
@pytest.mark.parametrize("trip_s", [0.05, 0.15])
@pytest.mark.parametrize("rate", [2.5e6, 12.5e6])
def test_a_machine_that_reads_acknowledgements_late_now_and_then_is_not_slowed_down(
    rate: float, trip_s: float, late_s: float
) -> None:
    used, _ = transfer(Pacing(WINDOW), rate=rate, trip_s=trip_s, seconds=20.0, late_s=late_s)
    assert used > 0.97


def test_the_limit_stays_at_what_the_rate_needs_when_all_acknowledgements_are_late() -> None:
    pacing = Pacing(WINDOW)
    transfer(pacing, rate=12.5e6, trip_s=0.05, seconds=5.0)
    needed = 12.5e6 * 0.05
    assert pacing.limit_bytes > needed
    # For long, each comes 150 ms later than the way and its queue explain.
    used, _ = transfer(pacing, rate=12.5e6, trip_s=0.2, seconds=20.0, starts_at=5.0)
    assert pacing.limit_bytes > needed
    assert used > 0.6
