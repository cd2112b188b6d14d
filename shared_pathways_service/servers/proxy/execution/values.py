"""The value of an array handle: data, or an error, or work that will result in one of the two."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    array_gone,
)
from shared_pathways_service.servers.proxy.execution.settling import Countdown

if TYPE_CHECKING:
    from shared_pathways_service.servers.devices.interface import Array, DeviceClient
    from shared_pathways_service.servers.proxy.execution.virtual_slices import Epoch
    from shared_pathways_service.servers.proxy.memory import Charge
    from shared_pathways_service.servers.xla.shardings import Placing

__all__ = ["PendingWork", "Spec", "Value", "fill", "when_all_settled"]


class PendingWork(Protocol):
    """Work that makes values or reads them, on some placements.

    Attributes:
      done: Whether it has settled, with data or an error.
      enqueued: Whether it is in the queues of its placements, so that later work comes after it.
    """

    done: bool
    enqueued: bool
    epochs: tuple[Epoch, ...]

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Calls `callback` when the work settles; False if it has already."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """What is known of an array before its data; `kind` is a DTypeProto.Kind, `shape` global."""

    kind: int
    dtype: Any
    shape: tuple[int, ...]
    placing: Placing

    @property
    def piece(self) -> tuple[str, tuple[int, ...], str]:
        """Type, shape and kind of memory of each device's piece."""
        return str(self.dtype), self.placing.shard_shape(self.shape), self.placing.memory_kind

    def shard_bytes(self) -> int:
        """Returns the bytes of one device's piece."""
        return math.prod(self.placing.shard_shape(self.shape)) * int(self.dtype.itemsize)


class Value:
    """An array behind a handle.

    Attributes:
      spec: None for a value that failed before anything was known of it.
      array: The client's array, once it is there.
      error: Why there will be none.
      operation: The operation that makes the array; None once settled (or from the start).
      epochs: The placements that hold the data.
      deleted: Whether it only stands for the memory of a deleted or donated array.
      readers: Operations that still wait for something else before they read this.
      client: The array's client; for a view of another array not always that of its placing.
      charge: Its charge on the devices' memory, which ends with the last value that has it.
      shared: Whether other values may share the memory.
    """

    __slots__ = (
        "_at_home",
        "array",
        "charge",
        "client",
        "deleted",
        "epochs",
        "error",
        "operation",
        "readers",
        "shared",
        "spec",
    )

    def __init__(self, spec: Spec | None, epochs: tuple[Epoch, ...]) -> None:
        self.spec = spec
        self.epochs = epochs
        self.array: Any = None
        self._at_home: Any = None
        self.client: DeviceClient | None = None if spec is None else spec.placing.client
        self.error: StatusError | None = None
        self.operation: PendingWork | None = None
        self.deleted = False
        self.shared = False
        self.readers: list[PendingWork] | None = None
        self.charge: Charge | tuple[Charge, ...] | None = None

    @classmethod
    def failed(cls, error: StatusError) -> Value:
        """Returns a value that has only an error."""
        value = cls(None, ())
        value.error = error.copy()
        return value

    @property
    def settled(self) -> bool:
        """Whether there is data or an error."""
        return self.operation is None

    def failure(self) -> StatusError | None:
        """Returns why there is no data, or no longer; None while it is there or may come."""
        if self.error is not None:
            return self.error
        for epoch in self.epochs:
            if epoch.lost is not None:
                return epoch.lost
        return None

    def known_spec(self) -> Spec:
        """Returns the spec, or raises the value's own error if it never had one."""
        if self.spec is None:
            error = self.error or StatusError(Code.INTERNAL, "array without type and shape")
            raise error.copy()
        return self.spec

    def at_home(self) -> Any:
        """Returns the array as one of its placing's own client, which programs there need."""
        spec = self.known_spec()
        home = spec.placing.client
        if self.client is home:
            return self.array
        if self._at_home is None:
            self._at_home = home.adopt(spec, self.parts())
        return self._at_home

    def parts(self) -> list[Array]:
        """Returns the array's pieces, one per device; of a value with data."""
        assert self.client is not None, "a value with data has a client"
        return self.client.parts(self.array)

    def fetch(self) -> list[Any]:
        """Returns the array's pieces as host arrays, which must not be changed; as `parts`."""
        assert self.client is not None, "a value with data has a client"
        return self.client.fetch(self.array)

    def reading(self) -> AbstractContextManager[list[Any]]:
        """Returns the array's pieces as `fetch` does, for use within a block."""
        assert self.client is not None, "a value with data has a client"
        return self.client.reading(self.array)

    def free(self) -> None:
        """Frees the memory of lost data: `failure` has the reason."""
        self.array = self._at_home = self.charge = None

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once there is data or an error; at once if there is."""
        operation = self.operation
        if operation is None or not operation.add_callback(callback):
            callback()

    def tombstone(self) -> Value:
        """Returns the value for a deleted or donated array; earlier operations still read this."""
        value = Value(self.spec, ())
        value.deleted = True
        value.error = array_gone()
        return value


def fill(
    values: Sequence[Value], error: StatusError | None, arrays: Sequence[Any], *, frees: bool
) -> None:
    """Gives values their arrays, or an error; then, if it `frees`, their charges end."""
    if error is None:
        for value, array in zip(values, arrays, strict=True):
            value.array = array
        return
    for value in values:
        value.error = error
        value.array = None
        if frees:
            value.charge = None


def when_all_settled(values: Sequence[Value], callback: Callable[[], None]) -> None:
    """Calls `callback` once, when every value has data or an error."""
    open_values = [value for value in values if not value.settled]
    if not open_values:
        callback()
        return
    countdown = Countdown(len(open_values), callback)
    for value in open_values:
        value.when_settled(countdown)
