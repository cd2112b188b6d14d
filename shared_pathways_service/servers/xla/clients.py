"""The clients of devices: one for each slice, and one for each used set of several slices."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence

import jax

from shared_pathways_service.servers.devices.interface import DeviceClient
from shared_pathways_service.servers.devices.status_errors import Code, StatusError

__all__ = ["Clients", "MakeClient", "forget_cached"]

#: Makes the client of some devices, ascending: all those of some slices, ascending.
MakeClient = Callable[[Sequence[int], tuple[int, ...]], DeviceClient]

#: The most sets of several slices at a time. Each has threads, a dozen on two processors.
_MOST_SETS = 32


class Clients:
    """Makes clients when they are needed. Thread-safe.

    The client of a set of several slices lives as long as something refers to it: a placing, and so
    an array, or a program. Until then all requests get the same client. If there are too many,
    `drop_cached` drops cached references.
    """

    def __init__(
        self, slice_of: Sequence[int], drop_cached: Callable[[], None], make: MakeClient
    ) -> None:
        self._make = make
        self._slice_of = tuple(slice_of)
        self._drop_cached = drop_cached
        self._lock = threading.Lock()
        self._of_one: dict[tuple[int, ...], DeviceClient] = {}
        self._of_several: weakref.WeakValueDictionary[tuple[int, ...], DeviceClient] = (
            weakref.WeakValueDictionary()
        )

    def get(self, slices: tuple[int, ...]) -> DeviceClient:
        """Returns the client of a set of slices, ascending."""
        with self._lock:
            clients = self._of_one if len(slices) == 1 else self._of_several
            found = clients.get(slices)
            if found is None:
                if len(slices) > 1:
                    self._make_room()
                ids = [i for i, index in enumerate(self._slice_of) if index in slices]
                found = clients[slices] = self._make(ids, slices)
            return found

    def _make_room(self) -> None:
        if len(self._of_several) < _MOST_SETS:
            return
        self._drop_cached()
        # Reference cycles hold XLA's threads as well.
        gc.collect()
        if len(self._of_several) >= _MOST_SETS:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED,
                f"arrays and programs lie on {_MOST_SETS} different sets of several slices; one "
                "more can be used once those of another set are dropped",
            )


def forget_cached() -> None:
    """Drops clients that JAX refers to only in its cache of shardings."""
    jax.clear_caches()
