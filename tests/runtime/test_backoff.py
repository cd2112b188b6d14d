"""Pauses double up to a limit, are spread by jitter, and start over after a success."""

from __future__ import annotations

from shared_pathways_service.runtime.backoff import Backoff


def test_pauses_double_up_to_the_limit() -> None:
    backoff = Backoff()
    pauses = [backoff.next_pause_s() for _ in range(9)]
    limits = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0]
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(pauses, limits, strict=True))


def test_a_success_starts_over() -> None:
    backoff = Backoff()
    for _ in range(9):
        backoff.next_pause_s()
    backoff.reset()
    assert backoff.next_pause_s() <= 0.1


def test_the_longest_pause_can_come_first() -> None:
    backoff = Backoff()
    backoff.use_longest()
    assert backoff.next_pause_s() >= 1.0


def test_jitter_spreads_clients() -> None:
    assert len({Backoff().next_pause_s() for _ in range(20)}) > 1
