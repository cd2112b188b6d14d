"""An executor's engine: opens the clients whose arrays and programs commands name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import StatusError

__all__ = ["BrokenClientError", "Client", "Engine", "Program", "Runner"]

#: A client's array, or its pieces on this host.
Array = Any


class BrokenClientError(StatusError):
    """A program failed, or did not run, so that its client runs no more over several hosts."""


class Program(Protocol):
    """A compiled program."""

    @property
    def spans_hosts(self) -> bool:
        """Whether other hosts run it as well."""


class Runner(Protocol):
    """A program's way to run."""

    @property
    def is_quick(self) -> bool:
        """Whether a run is sure to take next to no time."""

    @property
    def program(self) -> Program:
        """The program."""


class Client(Protocol):
    """Some devices of the proxy, of which this process has all or a part.

    Attributes:
      spans_hosts: Whether others have a part.
    """

    spans_hosts: bool

    # ---- arrays

    def put(self, spec: pb.ExecutorArraySpec, shards: Sequence[bytes | memoryview]) -> Array:
        """Makes an array of the bytes of the pieces here, which do not change afterwards."""

    def fetch(self, array: Any) -> list[memoryview]:
        """Returns the bytes of the pieces here."""

    def pieces(self, array: Any) -> list[memoryview]:
        """Returns the bytes of the pieces here, however many; also of an earlier client's array."""

    def split(self, array: Any) -> Sequence[Array]:
        """Returns an array of each piece here."""

    def make(self, method: str, body: pb.MakeArray, parts: Sequence[Any]) -> Array:
        """Makes an array of pieces: `join`, `adopt`, `copy` or `reinterpret`."""

    def reshard(self, body: pb.ReshardArray, held: Any, parts: Sequence[Any]) -> Array:
        """Makes an array of the content of another, all of whose pieces `held` has here."""

    def offered(self, body: pb.OfferParts, arrays: Sequence[Any]) -> Sequence[Any]:
        """Returns parts of arrays, which share their memory."""

    def gather(self, body: pb.GatherArray, arrays: Sequence[Any]) -> Array:
        """Makes an array of parts of arrays here, and of those that other executors offer."""

    # ---- programs

    def compile(self, body: pb.CompileProgram) -> Program:
        """Compiles a program, or loads it."""

    def facts(self, program: Any) -> pb.ProgramFacts:
        """Returns what the proxy asks of every program."""

    def description(self, program: Any, what: pb.DescribeProgram.What.ValueType) -> bytes | None:
        """Returns what the proxy rarely asks of a program; None: there is none."""

    def runner(
        self, program: Any, results: Sequence[pb.ExecutorArraySpec], *, is_quick: bool
    ) -> Runner:
        """Prepares a program for runs, which are sure to take next to no time if it is quick."""

    def run(self, runner: Any, arguments: Sequence[Any]) -> Sequence[Array]:
        """Runs a program to its end.

        Raises:
          BrokenClientError: This client has run no program over several hosts since one failed.
        """

    def break_down(self) -> None:
        """Refuses programs over several hosts from now on."""


class Engine(Protocol):
    """Makes clients of this host's devices."""

    def bound_collectives(self, seconds: int) -> None:
        """Bounds the waits for other hosts; called before each client is opened, on one thread."""

    def open(self, command: pb.OpenClient) -> Client:
        """Opens a client, together with the other hosts that have devices of it."""
