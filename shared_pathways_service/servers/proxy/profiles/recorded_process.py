"""A process that is profiled, as a profile sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent import futures
from typing import Protocol

from shared_pathways_service.servers.proxy.profiles.clocks import Sample
from shared_pathways_service.servers.proxy.profiles.planes import Device

__all__ = ["Levels", "RecordedProcess"]


@dataclasses.dataclass(frozen=True, slots=True)
class Levels:
    """What is recorded, as in `jax.profiler.ProfileOptions`."""

    host_tracer: int = 2
    python_tracer: int = 0


class RecordedProcess(Protocol):
    """A process that is profiled. Its futures get StatusErrors.

    Attributes:
      name: Its name, for people.
      file: The first part of the name of its file.
      devices: Its devices, ascending.
    """

    name: str
    file: str
    devices: Sequence[Device]

    @property
    def samples(self) -> Sequence[Sample]:
        """Round trips to its clock; empty: its clock is that of this process."""

    def start(self, levels: Levels) -> futures.Future[None]:
        """Begins its profile."""

    def read_clock(self) -> futures.Future[None]:
        """Adds a sample."""

    def stop(self, most_bytes: int) -> futures.Future[bytes]:
        """Ends its profile, and brings it, unless it has more bytes."""

    def drop(self) -> None:
        """Ends its profile, if there is one; does not wait, and raises nothing."""
