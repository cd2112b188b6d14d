"""Shows the counters of proxies, for `sps status`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from shared_pathways_service.metrics.families import Family, labelled, values_of

__all__ = ["Counters", "ProxyCounters", "fields_of", "text_of"]

_LATE = "sps_proxy_late_callback_seconds"


@dataclasses.dataclass(frozen=True)
class ProxyCounters:
    """The limits and counters of one proxy.

    Attributes:
      limits: The limits of its clients, by name; None: they are not known.
      families: Its counters; None: it did not answer.
    """

    limits: Mapping[str, int | None] | None
    families: Sequence[Family] | None


#: Counters by the connection's name.
Counters = Mapping[str, ProxyCounters]


def fields_of(counters: Counters) -> dict[str, Any]:
    """Returns ``proxies`` and ``late_callbacks`` for ``sps status --json``.

    The latter are unanswered calls to clients.
    """
    return {
        "proxies": [
            {
                "name": name,
                "limits": proxy.limits,
                "counters": None if proxy.families is None else values_of(proxy.families),
            }
            for name, proxy in counters.items()
        ],
        "late_callbacks": [
            {"connection": name, **sample.labels, "seconds": sample.value}
            for name, proxy in counters.items()
            for family in proxy.families or ()
            if family.name == _LATE
            for sample in family.samples
        ],
    }


def text_of(counters: Counters) -> str:
    """Returns counters as OpenMetrics text, with a label ``connection`` on each sample."""
    # Imported here, because other commands do not need prometheus_client.
    from shared_pathways_service.metrics.exposition import render  # noqa: PLC0415

    answered = {name: p.families for name, p in counters.items() if p.families is not None}
    return render(labelled(answered, "connection"))
