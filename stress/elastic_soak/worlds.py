"""Where the soak of elastic training harms slices: on CPU devices in name, or on a service.

JAX must have its devices when this is imported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from harness.elastic import example_training
from shared_pathways_service import elastic, isc_pathways
from shared_pathways_service.elastic.health.probes import add_one_everywhere
from shared_pathways_service.elastic.slices import slice_index
from shared_pathways_service.testing.faults import EmbeddedSlices, SimulatedSlices

__all__ = ["Embedded", "Simulated", "World"]


class World(Protocol):
    """Three slices, and a proxy, that can be harmed."""

    #: Which slice a device belongs to, and options that fit this world.
    slice_key: Callable[[jax.Device], int]
    options: Mapping[str, Any]

    def devices(self) -> Sequence[jax.Device]: ...

    def kill(self, index: int, down_for: float) -> None: ...

    def hang(self, index: int, for_s: float) -> None: ...

    def revive(self, index: int) -> None: ...

    def kill_proxy(self) -> None: ...

    def reconnect(self) -> Sequence[jax.Device]: ...

    def probe(self, devices: Sequence[jax.Device]) -> None: ...

    def begin(self) -> None: ...

    def look(self, slices: Sequence[int]) -> None: ...

    def result(self, loss: Any, slices: Sequence[int]) -> Any: ...


class Simulated(SimulatedSlices):
    """CPU devices that are harmed in name, and a proxy that is."""

    def __init__(self) -> None:
        super().__init__(example_training.slice_of)
        self.slice_key: Callable[[jax.Device], int] = example_training.slice_of
        self.options: Mapping[str, Any] = {"probe_timeout": 0.5, "health_timeout": 0.5}
        self._no_proxy = threading.Event()

    def devices(self) -> Sequence[jax.Device]:
        return jax.devices()

    def kill_proxy(self) -> None:
        self._no_proxy.set()

    def reconnect(self) -> Sequence[jax.Device]:
        self._no_proxy.clear()
        return jax.devices()

    def look(self, slices: Sequence[int]) -> None:
        self._raise_without_proxy()
        super().look(slices)

    def probe(self, devices: Sequence[jax.Device]) -> None:
        self._raise_without_proxy()
        super().probe(devices)

    def _raise_without_proxy(self) -> None:
        if self._no_proxy.is_set():
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: the connection was terminated")


class Embedded(EmbeddedSlices):
    """The slices and the proxy of a connection to an embedded service."""

    def __init__(self, connection: isc_pathways.Connection) -> None:
        super().__init__(connection.proxy_job_name)
        self.slice_key: Callable[[jax.Device], int] = slice_index
        self.options: Mapping[str, Any] = {"probe_timeout": 20.0, "health_timeout": 10.0}
        self.probe = add_one_everywhere
        self.reconnect = elastic.reconnect_with(connection)
        self._connection = connection

    def devices(self) -> Sequence[jax.Device]:
        return self._connection.devices

    def begin(self) -> None:
        """Does nothing: the proxy knows the lost slice."""

    def result(self, loss: Any, slices: Sequence[int]) -> Any:
        del slices
        return loss
