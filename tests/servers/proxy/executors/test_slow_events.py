"""Which verdicts on executors become events."""

from __future__ import annotations

from shared_pathways_service.servers.proxy.executors.run_comparison import Change, ExecutorId
from shared_pathways_service.servers.proxy.executors.slow_events import SlowEvents
from shared_pathways_service.servers.resource_manager import proxy_reports


def verdict(host: int, *, is_slow: bool) -> Change:
    return Change(executor=ExecutorId("slice-0", 0, 1, host), is_slow=is_slow, reason="why")


def test_a_verdict_that_waits_is_reported_later_unless_it_has_ended() -> None:
    events = SlowEvents()
    begun = [verdict(host, is_slow=True) for host in range(7)]
    assert events.admit(begun, 10) == begun[:4]
    # The end of each reported one is reported at once; that of one that waits never is.
    ends = [verdict(host, is_slow=False) for host in (0, 4)]
    assert events.admit(ends, 11) == ends[:1]
    assert events.admit([], 159) == []
    assert events.admit([], 160) == begun[5:6]
    assert events.admit([], 309) == []
    assert events.admit([], 310) == begun[6:]


def test_events_of_a_host_that_changes_all_the_time_stay_within_the_manager_s_limit() -> None:
    events, sent, is_slow = SlowEvents(), [], False
    for second in range(7200):
        is_slow = not is_slow
        sent += [(second, one) for one in events.admit([verdict(0, is_slow=is_slow)], second)]
    states = [one.is_slow for _, one in sent]
    assert states == [index % 2 == 0 for index in range(len(states))]
    left: float = proxy_reports._BURST
    last = 0
    for second, _ in sent:
        left = min(proxy_reports._BURST, left + (second - last) / proxy_reports._INTERVAL_S) - 1
        last = second
        assert left >= 1, "other events have no room"
