"""A client of executors as it is at one moment: executors and clients are replaced."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from shared_pathways_service.servers.devices.interface import ArraySpec
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink

__all__ = ["PresentClient"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PresentClient:
    """A client that is open on executors.

    Attributes:
      number: Its number there.
      link_of: The executor of each device.
    """

    number: int
    link_of: Mapping[int, ExecutorLink]

    def links_of(self, spec: ArraySpec) -> tuple[ExecutorLink, ...]:
        """Returns the executor of each piece of an array."""
        return tuple(self.link_of[i] for i in spec.placing.device_ids)

    def hosts(self, device_ids: Sequence[int]) -> tuple[ExecutorLink, ...]:
        """Returns the executors of some devices, each once."""
        return tuple(dict.fromkeys(self.link_of[i] for i in device_ids))

    def devices_of(self, device_ids: Sequence[int]) -> Mapping[ExecutorLink, int]:
        """Returns the number of these devices on each executor, in the order of `hosts`."""
        return collections.Counter(self.link_of[i] for i in device_ids)
