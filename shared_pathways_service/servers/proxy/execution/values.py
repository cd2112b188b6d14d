"""What an array handle stands for: data, or an error, or work that will bring one of the two."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shared_pathways_service.servers.proxy.execution.countdown import Countdown
from shared_pathways_service.servers.proxy.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.xla.xla import parts_of

if TYPE_CHECKING:
    from shared_pathways_service.servers.proxy.execution.virtual_slices import Epoch
    from shared_pathways_service.servers.proxy.memory import Charge
    from shared_pathways_service.servers.proxy.xla.shardings import Placing
    from shared_pathways_service.servers.proxy.xla.xla import XlaClient

__all__ = ["PendingWork", "Spec", "Value", "when_all_settled"]


class PendingWork(Protocol):
    """Work that makes values or reads them."""

    @property
    def done(self) -> bool:
        """Whether it has settled, with data or an error."""

    @property
    def enqueued(self) -> bool:
        """Whether it is in the queues of its placements, so that what comes later is behind it."""

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The placements that it runs on."""

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Has `callback` called when the work settles; False if it has already."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """What is known of an array before it is there.

    Attributes:
      kind: DTypeProto.Kind.
      dtype: As numpy has it.
      shape: The global shape.
      placing: Devices and sharding.
    """

    kind: int
    dtype: Any
    shape: tuple[int, ...]
    placing: Placing

    @property
    def piece(self) -> tuple[str, tuple[int, ...], str]:
        """Type, shape and kind of memory of what one device holds."""
        return str(self.dtype), self.placing.shard_shape(self.shape), self.placing.memory_kind

    def shard_bytes(self) -> int:
        """Returns the bytes of one device's piece."""
        return math.prod(self.placing.shard_shape(self.shape)) * int(self.dtype.itemsize)


class Value:
    """An array behind a handle.

    Attributes:
      spec: None for a value that failed before anything was known of it.
      array: The `jax.Array`, once there.
      error: Why there will be none.
      operation: What brings the array; None once settled (or from the start).
      epochs: The placements that hold the data.
      deleted: It stands only for the memory of an array that was deleted, or donated.
      readers: Operations that still wait for something else before they read this.
      client: Whose the array is; not always that of its placing, for a view of another array.
      charge: What it holds of the devices' memory; given back with the last value that has it.
      shared: Whether other values may stand for the same memory.
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
        self.client: XlaClient | None = None if spec is None else spec.placing.client
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
        value.error = error.anew()
        return value

    @property
    def settled(self) -> bool:
        """Whether there is data or an error."""
        return self.operation is None

    def failure(self) -> StatusError | None:
        """Returns why the data is not, or no longer, there; None while it is, or may come."""
        if self.error is not None:
            return self.error
        for epoch in self.epochs:
            if epoch.lost is not None:
                return epoch.lost
        return None

    def known_spec(self) -> Spec:
        """Returns the spec.

        Raises:
          StatusError: The value's own error, if it never had one.
        """
        if self.spec is None:
            error = self.error or StatusError(Code.INTERNAL, "array without type and shape")
            raise error.anew()
        return self.spec

    def at_home(self) -> Any:
        """Returns the array as one of its placing's own client, which programs there need."""
        spec = self.known_spec()
        home = spec.placing.client
        if self.client is home:
            return self.array
        if self._at_home is None:
            self._at_home = home.adopt(spec, parts_of(self.array))
        return self._at_home

    def let_go(self) -> None:
        """Frees the memory of data that is lost: `failure` says so to whoever asks for it."""
        self.array = self._at_home = self.charge = None

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Has `callback` called once there is data or an error; at once if there is."""
        operation = self.operation
        if operation is None or not operation.add_callback(callback):
            callback()

    def tombstone(self) -> Value:
        """Returns what a handle stands for once its array is deleted or donated.

        The value itself is left as it is: operations that were asked for before still read it.
        """
        value = Value(self.spec, ())
        value.deleted = True
        value.error = StatusError(Code.INVALID_ARGUMENT, "Array has been deleted or donated.")
        return value


def when_all_settled(values: Sequence[Value], callback: Callable[[], None]) -> None:
    """Has `callback` called once, when every value has data or an error."""
    open_values = [value for value in values if not value.settled]
    if not open_values:
        callback()
        return
    countdown = Countdown(len(open_values), callback)
    for value in open_values:
        value.when_settled(countdown)
