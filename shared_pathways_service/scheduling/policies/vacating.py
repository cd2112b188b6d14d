"""All slices of a running tenant are taken from it at once; it stays, and may have others later."""

from __future__ import annotations

from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.records import Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker

__all__ = ["vacate"]


def vacate(
    ledger: Ledger, speaker: Speaker, tenant: Tenant, reason: str, *, related: str = ""
) -> None:
    """Takes all that a running tenant holds; it does not run afterwards, and is in no line.

    Args:
      ledger: The books.
      speaker: Tells the tenant.
      tenant: Whose slices go.
      reason: Why, for it and for the history.
      related: The other tenant that has to do with it.
    """
    for index in range(len(tenant.kinds)):
        if index not in tenant.placed:
            ledger.stop_wanting(tenant, index)
    for index, held in sorted(tenant.placed.items()):
        generation = held.generation
        ledger.let_go(held, reason=reason, related=related)
        speaker.unplaced(tenant, index, held.id, generation, reason)
    tenant.running = False
    tenant.lost.clear()
    tenant.heard_running = False
    tenant.warned.clear()
    tenant.told = None
    tenant.idle_watch = None
    tenant.since = tenant.waits_since = ledger.now
