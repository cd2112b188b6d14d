"""Collects the counters that proxies report, for `sps status` and for one scraper of all of them.

A proxy belongs to its tenant: what it reports is checked, so that it cannot spoil the others' text.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping

from shared_pathways_service.metrics.families import Family, Kind, Sample, labelled
from shared_pathways_service.metrics.measurement_messages import families_of, message_of
from shared_pathways_service.protocol import proxy_status_pb2 as status_pb
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.glog import glog

__all__ = ["LABEL", "ProxyCounters"]

#: The label with the tenant's name.
LABEL = "connection"

_FAMILY = re.compile(r"sps_proxy(_[a-z0-9]+)*")
_LABEL_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
#: A family's name must not look like the name of another family's sample.
_SUFFIXES = ("_total", "_created", "_info", "_bucket", "_count", "_sum", "_gcount", "_gsum")
_KINDS = ("counter", "gauge", "info")
_UNITS = ("seconds", "bytes")
#: The largest report in bytes; usual ones have 5,000.
_LARGEST = 256 << 10


@dataclasses.dataclass(frozen=True)
class _Report:
    stream: object
    arrived: float
    message: status_pb.GetCountersResponse


class ProxyCounters:
    """The last report of each connected proxy.

    Args:
      clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[str, _Report] = {}
        self._has_warned = False

    def put(self, tenant: str, stream: object, message: status_pb.GetCountersResponse) -> None:
        """Keeps the report that came by a stream of a proxy, in place of the proxy's last one."""
        if message.ByteSize() > _LARGEST:
            if not self._has_warned:
                self._has_warned = True
                glog("W", f"Counters of the proxy of {tenant} are dropped: too large")
            return
        self._reports[tenant] = _Report(stream, self._clock(), message)

    def forget(self, tenant: str, stream: object) -> None:
        """Removes the report that came by a stream that has ended, unless there is a newer one."""
        known = self._reports.get(tenant)
        if known is not None and known.stream is stream:
            del self._reports[tenant]

    def messages(self, tenant: str = "") -> Iterator[pb.ProxyCounters]:
        """Returns the valid counters by the tenants' names; of one tenant if it is given.

        They are those of now; the result may be read on another thread.
        """
        return _messages(dict(self._reports), self._clock(), tenant)

    def families(self) -> Iterator[Family]:
        """Returns the valid counters of all proxies, each with the label `LABEL`.

        They are those of now; the result may be read on another thread.
        """
        return _families(dict(self._reports))


def _messages(
    reports: Mapping[str, _Report], now: float, tenant: str
) -> Iterator[pb.ProxyCounters]:
    for name, families in _usual(reports).items():
        if tenant in {"", name}:
            yield pb.ProxyCounters(
                tenant=name,
                families=message_of(families).families,
                age_s=now - reports[name].arrived,
            )


def _families(reports: Mapping[str, _Report]) -> Iterator[Family]:
    yield from labelled(_usual(reports), LABEL)


def _usual(reports: Mapping[str, _Report]) -> dict[str, list[Family]]:
    """Returns the valid families of all proxies, by the tenants' names."""
    found = {name: _valid(one.message) for name, one in sorted(reports.items())}
    kinds = _usual_kinds(found)
    return {
        name: [one for one in families if kinds[one.name] == (one.kind, one.unit)]
        for name, families in found.items()
    }


def _valid(message: status_pb.GetCountersResponse) -> list[Family]:
    """Returns the valid families of a report, each name once, with their valid samples."""
    families = {one.name: one for one in message.families if _is_valid(one)}
    return [
        dataclasses.replace(family, samples=_samples(family))
        for family in families_of(status_pb.GetCountersResponse(families=families.values()))
    ]


def _is_valid(family: status_pb.MetricFamily) -> bool:
    name, unit = family.name, family.unit
    return (
        _FAMILY.fullmatch(name) is not None
        and not name.endswith(_SUFFIXES)
        and family.kind in _KINDS
        and (not unit or _is_valid_unit(family))
    )


def _is_valid_unit(family: status_pb.MetricFamily) -> bool:
    # OpenMetrics forbids the unit of an info.
    return (
        family.kind != "info" and family.unit in _UNITS and family.name.endswith(f"_{family.unit}")
    )


def _samples(family: Family) -> list[Sample]:
    """Returns the valid samples of a family, each set of labels once."""
    samples: dict[tuple[tuple[str, str], ...], Sample] = {}
    for sample in family.samples:
        names_are_valid = all(_LABEL_NAME.fullmatch(one) and one != LABEL for one in sample.labels)
        if names_are_valid and _is_possible(family.kind, sample.value):
            samples[tuple(sorted(sample.labels.items()))] = sample
    return list(samples.values())


def _is_possible(kind: Kind, value: float) -> bool:
    return kind == "gauge" or (value == 1 if kind == "info" else 0 <= value < math.inf)


def _usual_kinds(found: Mapping[str, list[Family]]) -> dict[str, tuple[str, str]]:
    """Returns the kind and the unit that most proxies report of each family."""
    counts = collections.Counter(
        (one.name, one.kind, one.unit) for families in found.values() for one in families
    )
    return {name: (kind, unit) for (name, kind, unit), _ in reversed(counts.most_common())}
