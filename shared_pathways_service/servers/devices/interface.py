"""Devices with their arrays and programs: all that the proxy asks of whatever computes.

Sessions, operations and the compiler know arrays and programs only by these methods. An
implementation may compute in this process or in others. Everything else about an array (its type,
shape, place, owner, and whether its slice is lost) is the proxy's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from shared_pathways_service.protocol.ifrt import core_pb2, xla_pb2

if TYPE_CHECKING:
    from shared_pathways_service.servers.devices.status_errors import StatusError

__all__ = ["DEVICE_MEMORY", "Array", "ArraySpec", "DeviceClient", "Executable", "Place", "Start"]

#: The memory of an array unless its sharding names another.
DEVICE_MEMORY = "device"

#: An implementation's array over some devices, or its piece on one of them.
Array = Any


class Place(Protocol):
    """The place of an array."""

    @property
    def device_ids(self) -> Sequence[int]:
        """The device of each piece."""

    @property
    def memory_kind(self) -> str:
        """The memory of each piece."""

    @property
    def sharding(self) -> Any:
        """The client's own form of the sharding."""

    @property
    def proto(self) -> core_pb2.ShardingProto:
        """The protocol's form of the sharding."""

    @property
    def client(self) -> DeviceClient:
        """The client of the devices."""

    def pieces(self, shape: tuple[int, ...]) -> Sequence[tuple[slice, ...]]:
        """Returns, for each device, its part of an array of this shape."""

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of each piece of an array of this shape."""


class ArraySpec(Protocol):
    """What is known of an array besides its data."""

    @property
    def kind(self) -> int:
        """The protocol's number of the type, a DTypeProto.Kind."""

    @property
    def dtype(self) -> Any:
        """The numpy type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""

    @property
    def placing(self) -> Place:
        """The place of its pieces."""


class Start(Protocol):
    """Starts a program, to run after those that were started before it."""

    @property
    def is_quick(self) -> bool:
        """Whether a start waits for nothing now."""

    def __call__(
        self, arguments: list[Array], on_end: Callable[[StatusError | None], None], /
    ) -> list[Array]:
        """Returns the results, which can be arguments of programs on the same devices at once.

        If the run fails, so do those, with its error. `on_end` is called once with the error, or
        None, on any thread: it must not wait.
        """


class Executable(Protocol):
    """A compiled program.

    Attributes:
      name: The program's name.
      fingerprint: Equal for equal programs; may be empty.
      memory: The memory that a run needs on each device, in numbers.
      code_bytes: The size of the machine code.
    """

    name: str
    fingerprint: bytes
    memory: xla_pb2.CompiledMemoryStatsProto
    code_bytes: int

    def parameter_shardings(self) -> list[bytes] | None:
        """Returns a serialised xla.OpSharding for each parameter; None if there is none."""

    def result_shardings(self) -> list[bytes] | None:
        """Returns a serialised xla.OpSharding for each result; None if there is none."""

    def result_memory_kinds(self) -> list[list[str]]:
        """Returns the memory of each result, for each module of the program."""

    def parameter_layouts(self) -> list[str]:
        """Returns XLA's text of the layout of each parameter; raises for tokens."""

    def result_layouts(self) -> list[str]:
        """Returns XLA's text of the layout of each result; raises for tokens."""

    def aliased_parameters(self) -> frozenset[int]:
        """Returns the indices of arguments whose memory the program takes for its results. Slow."""

    def memory_report(self) -> xla_pb2.CompiledMemoryStatsProto:
        """Returns `memory` with XLA's assignment of buffers, which can be large."""

    def costs(self) -> Mapping[str, object]:
        """Returns XLA's estimates, by their names. Slow."""

    def text(self) -> str:
        """Returns the optimised program as text. Slow."""

    def serialized(self) -> bytes | None:
        """Returns the form for `DeviceClient.load`; None if it could not be loaded."""

    def runner(self, results: Sequence[ArraySpec]) -> Callable[[list[Array]], list[Array]]:
        """Returns a function that runs the program to its end."""

    def starter(self, results: Sequence[ArraySpec], *, is_quick: bool) -> Start | None:
        """Returns what starts the program; None if it only runs to its end.

        Args:
          results: What is known of the results.
          is_quick: Whether a run is sure to take next to no time.
        """


class DeviceClient(Protocol):
    """Some devices, by the proxy's numbers, with their arrays and programs.

    What it does for a thread that is bound to placements (`bound_work`) it does on no later ones.

    Arrays and programs belong to the client that made them. A client runs its programs over several
    devices one after the other, whatever their devices: one that does not end delays all others of
    the same client.

    Attributes:
      platform: The name of the platform that its programs are compiled for.
      memory_kinds: Those of each device, the default first. They are separate memories.
    """

    platform: str
    memory_kinds: tuple[str, ...]

    # ---- shardings

    def single_sharding(self, device_id: int, memory_kind: str) -> Any:
        """Returns the sharding of an array on one device."""

    def hlo_sharding(self, device_ids: Sequence[int], serialized: bytes, memory_kind: str) -> Any:
        """Returns the sharding for a serialised xla.OpSharding."""

    # ---- arrays

    def put(self, spec: ArraySpec, shards: Sequence[Any]) -> Array:
        """Makes an array from one host array per device, which must not change afterwards."""

    def fetch(self, array: Array) -> list[Any]:
        """Returns each piece as a host array, which must not be changed."""

    def reading(self, array: Array) -> AbstractContextManager[list[Any]]:
        """Does as `fetch`, for use within a block: what is under way at a time may be bounded."""

    def parts(self, array: Array) -> list[Array]:
        """Returns the pieces, one per device, in the order of the sharding's devices."""

    def join(self, spec: ArraySpec, parts: Sequence[Array]) -> Array:
        """Makes one array of this client's pieces, which share their memory with it."""

    def adopt(self, spec: ArraySpec, parts: Sequence[Array]) -> Array:
        """Makes an array of another client's pieces on the same devices, without a copy if it can.

        Pieces of other devices are copied.
        """

    def copy(self, spec: ArraySpec, parts: Sequence[Array]) -> Array:
        """Makes an array of copies of this client's pieces, and waits for its data."""

    def reinterpret(self, spec: ArraySpec, parts: Sequence[Array]) -> Array:
        """Makes an array of the same bytes, device by device, of another type and shape."""

    def reshard(self, spec: ArraySpec, held: Place, parts: Sequence[Array]) -> Array:
        """Makes an array of the same content as one in another place, whoever has its pieces.

        Args:
          spec: The new array.
          held: The place of the pieces; like the new one it must tell which device has which part.
          parts: The pieces.
        """

    def is_deleted(self, array: Array) -> bool:
        """Whether a piece of the array is deleted, or was donated to a program."""

    def addresses(self, array: Array) -> list[int]:
        """Returns a number for each piece; pieces on one device share memory if theirs are equal.

        Raises an error of its own for deleted arrays.
        """

    def default_layout(self, dtype: Any, shape: Sequence[int], device_id: int) -> str:
        """Returns the text of the layout that arrays of this type have on a device."""

    # ---- programs

    def identity(self) -> bytes:
        """Returns what programs compiled here depend on, besides themselves and the machine."""

    def options(
        self, options: bytes, device_ids: Sequence[int], flags: Sequence[tuple[str, str]] = ()
    ) -> Any:
        """Parses a serialised xla.CompileOptionsProto, for devices of this client in this order.

        XLA's flags override the options. Options that would crash XLA, or make it write or read
        files, are refused.
        """

    def compile(
        self,
        program: Any,
        device_ids: Sequence[int],
        options: Any,
        callbacks: Sequence[Callable[..., Any]] = (),
    ) -> Executable:
        """Compiles a program for some devices.

        Args:
          program: Portable StableHLO, as in `CompileRequest.program.data`, or MLIR as text; a
            module if it calls functions.
          device_ids: The devices in the order of the device assignment.
          options: Made by `options` for the same devices.
          callbacks: The functions that it calls by index; they take and return numpy arrays.
        """

    def load(self, serialized: bytes, device_ids: Sequence[int], options: Any) -> Executable:
        """Loads the result of `Executable.serialized` for a program compiled with these arguments.

        The caller must know that it comes from there: it is run unchecked.
        """
