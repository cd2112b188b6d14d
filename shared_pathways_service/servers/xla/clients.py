"""The clients of devices: one for each slice, and one for each used set of several slices."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent import futures

import jax

from shared_pathways_service.servers.devices.interface import DeviceClient
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
)

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
        self._making: dict[tuple[int, ...], futures.Future[DeviceClient]] = {}
        self._of_one: dict[tuple[int, ...], DeviceClient] = {}
        self._of_several: weakref.WeakValueDictionary[tuple[int, ...], DeviceClient] = (
            weakref.WeakValueDictionary()
        )

    def get(self, slices: tuple[int, ...]) -> DeviceClient:
        """Returns the client of a set of slices, ascending."""
        with self._lock:
            found = self._known(slices)
            if found is not None:
                return found
            making = self._making.get(slices)
            is_first = making is None
            if making is None:
                if len(slices) > 1:
                    self._make_room()
                making = self._making[slices] = futures.Future()
        if is_first:
            # Without the lock, so that one that is slow to make delays no other.
            self._make_for_all(slices, making)
        error = making.exception()
        if error is not None:
            raise from_exception(error).copy()
        return making.result()

    def _known(self, slices: tuple[int, ...]) -> DeviceClient | None:
        clients = self._of_one if len(slices) == 1 else self._of_several
        return clients.get(slices)

    def _make_for_all(self, slices: tuple[int, ...], making: futures.Future[DeviceClient]) -> None:
        ids = [i for i, index in enumerate(self._slice_of) if index in slices]
        try:
            made = self._make(ids, slices)
        except BaseException as error:  # noqa: BLE001 - all that wait raise it
            with self._lock:
                del self._making[slices]
            making.set_exception(from_exception(error).copy())
            return
        with self._lock:
            del self._making[slices]
            if len(slices) == 1:
                self._of_one[slices] = made
            else:
                self._of_several[slices] = made
        making.set_result(made)

    def _make_room(self) -> None:
        if self._count() < _MOST_SETS:
            return
        self._drop_cached()
        # Reference cycles hold XLA's threads as well.
        gc.collect()
        if self._count() >= _MOST_SETS:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED,
                f"arrays and programs lie on {_MOST_SETS} different sets of several slices; one "
                "more can be used once those of another set are dropped",
            )

    def _count(self) -> int:
        return len(self._of_several) + sum(len(slices) > 1 for slices in self._making)


def forget_cached() -> None:
    """Drops clients that JAX refers to only in its cache of shardings."""
    jax.clear_caches()
