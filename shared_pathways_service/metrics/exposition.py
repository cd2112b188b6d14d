"""Renders measurements as OpenMetrics text, by prometheus_client."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.samples import Sample

from shared_pathways_service.metrics.families import Family

__all__ = ["CONTENT_TYPE_LATEST", "render"]


@dataclasses.dataclass(frozen=True)
class _Collector:
    """A prometheus_client collector of measurements that are counted elsewhere."""

    families: Iterable[Family]

    def collect(self) -> Iterator[Metric]:
        """Yields each family as an object of prometheus_client."""
        for family in self.families:
            metric = Metric(family.name, family.help, family.kind, family.unit)
            metric.samples = [
                Sample(family.sample_name + sample.suffix, dict(sample.labels), sample.value)
                for sample in family.samples
            ]
            yield metric


def render(families: Iterable[Family]) -> str:
    """Returns the text, which ends with OpenMetrics' end mark.

    Raises:
      ValueError: OpenMetrics does not allow a name.
    """
    return str(generate_latest(_Collector(families)), "utf-8")
