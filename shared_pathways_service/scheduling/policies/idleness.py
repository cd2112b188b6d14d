"""Slices of tenants that do not work are taken back, after a warning.

A proxy tells, now and then and only if something changed, how often it was seen at work and how
long ago. A running tenant that did nothing for `RmConfig.idle_release_s`, counted from its start at
the earliest, loses its slices; `idle_warning_s` before that it is warned. Nobody is taken at his
silence: slices go only if the proxy, asked by the warning, has answered that still nothing was
done, and each piece of work until then withdraws the warning. A proxy that never told, as those of
older versions, keeps its slices for ever.

Such a tenant is *parked*: it holds nothing and waits in no line, so that it keeps nobody from
anything. The next piece of work that it tries, which fails, has it ask for its slices anew, behind
those that ask already; it then waits for as long as it takes.

Warnings are not written down: after a restart of the resource manager they are given anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.events.tenants import TenantIdled, TenantIdling, TenantIdlingWithdrawn
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import TellIdle, TenantActivity
from shared_pathways_service.scheduling.book.records import IdleWatch, Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.policies.aging import rank_of
from shared_pathways_service.scheduling.policies.vacating import vacate

__all__ = ["Idleness"]


class Idleness:
    """Tenants work, are idle, are warned, lose their slices and come back.

    Args:
      config: Of the core.
      ledger: The books.
      speaker: Tells tenants.
      deadlines: When something has to be looked at.
      on_back: Told of a tenant that is in line again.
    """

    def __init__(
        self,
        config: RmConfig,
        ledger: Ledger,
        speaker: Speaker,
        deadlines: Deadlines,
        on_back: Callable[[Tenant], None],
    ) -> None:
        self._release_s = config.idle_release_s
        self._warning_s = config.idle_warning_s
        self._aging_s = config.aging_s
        self._ledger = ledger
        self._speaker = speaker
        self._deadlines = deadlines
        self._on_back = on_back

    # ---- events

    def heard(self, event: TenantActivity) -> None:
        """Takes in what a proxy tells; of one that is not known, nothing."""
        tenant = self._ledger.tenants.get(event.tenant)
        if self._release_s is None or tenant is None or tenant.incarnation != event.incarnation:
            return
        known, tenant.worked = tenant.worked, event.count
        has_worked = event.count != known
        if has_worked:
            tenant.active_at = max(tenant.active_at, self._ledger.now - event.idle_s)
        if tenant.parked is not None:
            if event.count > tenant.parked:
                self._come_back(tenant)
        elif tenant.running:
            self._look_out(tenant, has_worked=has_worked)

    def returned(self, tenant: Tenant) -> None:
        """Tells a tenant whose proxy speaks again what it may have missed."""
        if tenant.parked is not None:
            self._tell(tenant, released=True)
        elif (watch := tenant.idle_watch) is not None and watch.ends_at is not None:
            self._tell(tenant, release_s=max(0.0, watch.ends_at - self._ledger.now))

    # ---- the look-out

    def _look_out(self, tenant: Tenant, *, has_worked: bool) -> None:
        watch = tenant.idle_watch
        if watch is None:
            tenant.idle_watch = watch = IdleWatch()
            self._await_warning(tenant, watch)
        elif watch.ends_at is None:
            return
        elif has_worked:
            self._withdraw(tenant, watch)
        elif not watch.confirmed:
            watch.confirmed = True
            ends_at = watch.ends_at
            self._deadlines.add(
                lambda: ends_at if _is_on(tenant, watch) and watch.ends_at == ends_at else None,
                lambda: self._release(tenant, watch),
            )

    def _await_warning(self, tenant: Tenant, watch: IdleWatch) -> None:
        assert self._release_s is not None
        after = self._release_s - self._warning_s
        self._deadlines.add(
            lambda: tenant.idle_since + after if _is_on(tenant, watch) else None,
            lambda: self._warn(tenant, watch),
        )

    def _warn(self, tenant: Tenant, watch: IdleWatch) -> None:
        if not tenant.connected:
            # It could not be warned. When it speaks again it tells how idle it is.
            tenant.idle_watch = None
            return
        watch.ends_at = self._ledger.now + self._warning_s
        watch.confirmed = False
        self._tell(tenant, release_s=self._warning_s)
        idle_s = self._idle_s(tenant)
        self._speaker.announce(
            partial(TenantIdling, tenant=tenant.name, idle_s=idle_s, release_s=self._warning_s)
        )

    def _withdraw(self, tenant: Tenant, watch: IdleWatch) -> None:
        watch.ends_at = None
        self._tell(tenant, withdrawn=True)
        self._announce_withdrawn(tenant)
        self._await_warning(tenant, watch)

    def _release(self, tenant: Tenant, watch: IdleWatch) -> None:
        if not tenant.connected:
            # It could not answer any more; whatever it did meanwhile it tells when it is back.
            watch.ends_at = None
            tenant.idle_watch = None
            self._announce_withdrawn(tenant)
            return
        ledger, idle_s = self._ledger, self._idle_s(tenant)
        reason = f"released: idle for {idle_s:.0f} s"
        tenant.idled = True
        tenant.parked = tenant.worked
        vacate(ledger, self._speaker, tenant, reason)
        if tenant.notice is not None:
            # What it leaves goes to whom it would have been preempted for.
            if tenant.notice.plan is not None:
                ledger.spare(tenant.notice.plan, tenant)
            ledger.end_notice(tenant)
        ledger.decide_tenant(tenant, DecisionKind.IDLED, reason, ends=False)
        ledger.write(tenant)
        self._tell(tenant, released=True)
        self._speaker.announce(
            partial(TenantIdled, tenant=tenant.name, reason=reason, idle_s=self._idle_s(tenant))
        )

    def _come_back(self, tenant: Tenant) -> None:
        """Puts a parked tenant in line, as if it asked now."""
        ledger, now = self._ledger, self._ledger.now
        for pool in tenant.wants:
            # Those who hold are sorted by their arrival, and it may not be struck out yet.
            pool.yielding.refresh(pool.yield_of)
        tenant.parked = None
        ledger.last_order += 1
        tenant.order = ledger.last_order
        tenant.asked_at = tenant.since = tenant.waits_since = now
        tenant.rank = rank_of(tenant.priority, now, tenant.order, self._aging_s)
        tenant.was_queued = False
        ledger.enqueue(tenant)
        self._on_back(tenant)

    # ---- parts

    def _idle_s(self, tenant: Tenant) -> float:
        return self._ledger.now - tenant.idle_since

    def _tell(
        self,
        tenant: Tenant,
        *,
        release_s: float = 0.0,
        withdrawn: bool = False,
        released: bool = False,
    ) -> None:
        if tenant.connected:
            self._speaker.say(
                TellIdle(
                    tenant=tenant.name,
                    idle_s=self._idle_s(tenant),
                    release_s=release_s,
                    withdrawn=withdrawn,
                    released=released,
                    count=tenant.parked if tenant.parked is not None else tenant.worked or 0,
                )
            )

    def _announce_withdrawn(self, tenant: Tenant) -> None:
        idle_s = self._idle_s(tenant)
        self._speaker.announce(partial(TenantIdlingWithdrawn, tenant=tenant.name, idle_s=idle_s))


def _is_on(tenant: Tenant, watch: IdleWatch) -> bool:
    return tenant.idle_watch is watch and not tenant.gone
