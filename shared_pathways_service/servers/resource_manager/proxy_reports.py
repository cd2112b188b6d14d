"""Checks the events that proxies report, and limits their number."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable

from google.protobuf import json_format

from shared_pathways_service.api.validation import check_text
from shared_pathways_service.events import Event, OtherEvent
from shared_pathways_service.events.proxy import ProxyReport
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import event_of
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.scheduling.book.messages import ProxyReported, TenantAsked

__all__ = ["ProxyReports"]

_KIND = re.compile(r"proxy\.[a-z0-9_.]{1,64}|executor\.slow(_ended)?")
#: The longest event in bytes, as it is sent.
_LONGEST = 4096
#: The number of events of a tenant at once, and the seconds for each further one.
_BURST, _INTERVAL_S = 10, 60.0


class ProxyReports:
    """Drops events that are not valid, or too many, with a line in the log.

    An event tells people something: it is no reason to end its tenant's work, as the refusal of a
    stream would.

    Args:
      clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When each tenant may send a whole burst again, the tenants in the order of their events.
        self._full_at: dict[str, float] = {}

    def read(self, asked: TenantAsked, message: pb.EventMessage) -> ProxyReported | None:
        """Returns the core's event; None: it is dropped."""
        tenant = asked.request.name
        if not self._admits(tenant):
            return None
        try:
            event = _checked(message)
        except (ValueError, json_format.Error) as error:
            glog("W", f"An event of the proxy of {tenant} is dropped: {error}")
            return None
        flat = dataclasses.replace(event, tenant=tenant, source=ProxyReport.source).to_dict()
        del flat["time"], flat["monotonic"]
        return ProxyReported(tenant=tenant, incarnation=asked.incarnation, event=json.dumps(flat))

    def _admits(self, tenant: str) -> bool:
        now, full_at = self._clock(), self._full_at
        at = max(now, full_at.pop(tenant, now))
        left = round(_BURST - (at - now) / _INTERVAL_S, 6)
        full_at[tenant] = at + _INTERVAL_S if left >= 1 else at
        while full_at[first := next(iter(full_at))] <= now:
            del full_at[first]
        if 1 <= left < 2:
            glog("W", f"Further events of the proxy of {tenant} are dropped for a minute")
        return left >= 1


def _checked(message: pb.EventMessage) -> Event:
    """Returns the event of a message.

    Raises:
      ValueError: It is not valid.
    """
    if message.ByteSize() > _LONGEST:
        raise ValueError(f"it has {message.ByteSize()} bytes, and at most {_LONGEST} are allowed")
    check_text("reason", message.reason)
    check_text("slice", message.slice)
    event = event_of(message)
    event.to_json()
    if not all(isinstance(value, str | int | float | None) for value in event.data.values()):
        raise ValueError("its data are not texts, numbers and booleans only")
    # A home's own events of a proxy, such as its end, must not be forged.
    if not _KIND.fullmatch(event.kind) or not isinstance(event, ProxyReport | OtherEvent):
        raise ValueError(f"{event.kind[:80]!r} is not an event that a proxy reports")
    return event
