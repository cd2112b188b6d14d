"""Slices that are harmed in name only: any devices, e.g. a CPU's, grouped by a key."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final, Self

import jax
import numpy as np

from shared_pathways_service.elastic.health.probes import add_one_everywhere
from shared_pathways_service.elastic.slices import SliceKey

__all__ = ["SimulatedSlices"]

#: The longest single wait in seconds: a lock does not accept an infinite timeout.
_LONGEST_WAIT_S: Final = 3600.0


class SimulatedSlices:
    """Simulates lost and hanging slices, for probes and, by `look`, for training.

    As with a real service, work on a killed slice is lost even if the slice has returned: call
    `begin` when training begins anew. The creator closes it.

    Args:
      key: Returns the slice of a device.
    """

    def __init__(self, key: SliceKey) -> None:
        self._key = key
        self._changed = threading.Condition()
        self._back_at: dict[int, float] = {}
        self._hung: dict[int, float] = {}
        self._lost: set[int] = set()
        self._closed = False

    def kill(self, index: int, down_for: float) -> None:
        """Ends a slice; it returns after `down_for` seconds; infinity: when it is revived."""
        with self._changed:
            self._lost.add(index)
            self._back_at[index] = time.monotonic() + down_for

    def hang(self, index: int, for_s: float) -> None:
        """Makes a slice hang for `for_s` seconds; infinity: until it is revived."""
        with self._changed:
            self._hung[index] = time.monotonic() + for_s

    def revive(self, index: int) -> None:
        """Ends a failure or hang of a slice now."""
        with self._changed:
            self._back_at.pop(index, None)
            self._hung.pop(index, None)
            self._changed.notify_all()

    def begin(self) -> None:
        """Forgets earlier losses, because training begins anew."""
        with self._changed:
            now = time.monotonic()
            self._lost = {i for i, back_at in self._back_at.items() if back_at > now}

    def look(self, slices: Sequence[int]) -> None:
        """Raises, as JAX would, if one of them was lost since `begin`."""
        with self._changed:
            lost = sorted(self._lost & set(slices))
        if lost:
            raise jax.errors.JaxRuntimeError(f"DATA_LOSS: virtual slice {lost[0]} was lost: killed")

    def result(self, value: jax.Array, slices: Sequence[int]) -> _Result:
        """Returns a result of these slices; it is not ready while one of them hangs."""
        return _Result(value, self, slices)

    def probe(self, devices: Sequence[jax.Device]) -> None:
        """Probes a slice, as the manager does."""
        index = self._key(devices[0])
        self.wait_while_hung([index])
        with self._changed:
            down = self._back_at.get(index, 0.0) > time.monotonic()
        if down:
            raise jax.errors.JaxRuntimeError(
                f"DATA_LOSS: virtual slice {index} is unplaced: killed"
            )
        add_one_everywhere(devices)

    def wait_while_hung(self, slices: Sequence[int]) -> None:
        """Waits as long as one of these slices hangs."""
        with self._changed:
            while not self._closed and (left := self._hung_for(slices)) > 0:
                self._changed.wait(min(left, _LONGEST_WAIT_S))

    def close(self) -> None:
        """Ends all hangs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _hung_for(self, slices: Sequence[int]) -> float:
        return max((self._hung.get(index, 0.0) for index in slices), default=0.0) - time.monotonic()


class _Result:
    """A number that is ready once no slice hangs; has the methods of `jax.Array` for waiting."""

    def __init__(self, value: Any, world: SimulatedSlices, slices: Sequence[int]) -> None:
        self._value = value
        self._world = world
        self._slices = slices

    def copy_to_host_async(self) -> None:
        self._value.copy_to_host_async()

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> np.ndarray[Any, Any]:
        self._world.wait_while_hung(self._slices)
        return np.asarray(self._value, dtype=dtype, copy=copy)
