"""News of one tenant: each once, also after a restart of the resource manager."""

from __future__ import annotations

from shared_pathways_service.events import Event
from shared_pathways_service.events.tenants import ExecutorStarted
from shared_pathways_service.homes.manager_news import TenantView
from tests.homes.tenant_events import event, placed


def kinds(view: TenantView, told: Event) -> list[str]:
    return [news.kind for news in view.hear(told)]


def test_events_repeated_by_a_new_watch_are_dropped() -> None:
    view = TenantView()
    assert kinds(view, event("tenant.queued", "full", position=1)) == ["tenant.queued"]
    assert kinds(view, event("tenant.queued", "full", position=1)) == []
    assert kinds(view, event("tenant.queued", "full", position=2)) == ["tenant.queued"]
    assert kinds(view, placed(0, 5)) == ["slice.placed"]
    assert kinds(view, event("tenant.running", placed=1, wanted=1)) == ["tenant.running"]
    assert kinds(view, placed(0, 5)) == []
    assert kinds(view, event("tenant.running", placed=1, wanted=1)) == []


def test_a_missed_loss_is_reported_before_the_new_placement() -> None:
    view = TenantView()
    view.hear(placed(0, 5))
    lost, again = view.hear(placed(0, 6))
    assert (lost.kind, lost.data["generation"]) == ("slice.unplaced", 5)
    assert (again.kind, again.data["generation"]) == ("slice.placed", 6)
    assert kinds(view, event("slice.unplaced", virtual_index=0, generation=6)) == ["slice.unplaced"]
    assert kinds(view, event("slice.unplaced", virtual_index=0, generation=0)) == []


def test_a_missed_start_of_executors_is_reported_once() -> None:
    def told(*, starting: bool | None) -> Event:
        return event("slice.placed", virtual_index=0, generation=5, starting=starting)

    view = TenantView()
    assert kinds(view, told(starting=True)) == ["slice.placed"]
    assert kinds(view, told(starting=True)) == []
    # A resource manager that was restarted does not know at first.
    assert kinds(view, told(starting=None)) == []
    [started] = view.hear(told(starting=False))
    assert isinstance(started, ExecutorStarted)
    assert (started.tenant, started.virtual_index, started.generation) == ("t", 0, 5)
    assert kinds(view, told(starting=False)) == []
    # It is not reported again by a resource manager that took note of it after its restart.
    assert kinds(view, told(starting=True)) == []
    again = event("executor.started", virtual_index=0, generation=5)
    assert kinds(view, again) == []
    assert kinds(view, told(starting=False)) == []
    # One that was not missed is not repeated.
    view = TenantView()
    view.hear(told(starting=True))
    for generation in (4, 5):
        news = event("executor.started", virtual_index=0, generation=generation)
        assert kinds(view, news) == ["executor.started"]
    assert kinds(view, news) == []
    assert kinds(view, told(starting=False)) == []


def test_events_of_a_proxy_are_passed_on_and_those_for_operators_are_not() -> None:
    view = TenantView()
    for _ in range(2):
        near = event("proxy.memory_near_limit", "device 0 has 95 of 100 bytes in use", device=0)
        assert kinds(view, near) == ["proxy.memory_near_limit"]
    for other in ("tenant.disconnected", "tenant.returned", "proxy.exited", "proxy.something_new"):
        assert kinds(view, event(other)) == []


def test_final_events_end_the_view() -> None:
    refused, gone = TenantView(), TenantView()
    assert kinds(refused, event("tenant.refused", kind="slices_taken")) == ["tenant.refused"]
    assert refused.over
    assert kinds(gone, event("tenant.gone")) == []
    assert gone.over
    assert kinds(gone, event("tenant.something_new")) == []
