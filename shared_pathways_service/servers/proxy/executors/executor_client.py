"""A `DeviceClient` whose arrays and programs are on executors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from shared_pathways_service.constants import CPU
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.array_bytes import chunks, flat, joined
from shared_pathways_service.servers.devices.interface import ArraySpec, Executable, Place
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.executors.awaiting import first_error
from shared_pathways_service.servers.proxy.executors.executor_link import (
    ExecutorLink,
    ask_all,
)
from shared_pathways_service.servers.proxy.executors.executor_programs import RemoteExecutable
from shared_pathways_service.servers.proxy.executors.executor_times import ExecutorTimes
from shared_pathways_service.servers.proxy.executors.first_compilation import compiled
from shared_pathways_service.servers.proxy.executors.gathering import (
    Piece,
    gather,
    recuts,
    wholes,
)
from shared_pathways_service.servers.proxy.executors.present_client import PresentClient
from shared_pathways_service.servers.proxy.executors.remote_arrays import (
    Memory,
    RemoteArray,
    spec_message,
)
from shared_pathways_service.servers.xla.platforms import Placeholders
from shared_pathways_service.servers.xla.xla import XlaClient

__all__ = ["ExecutorClient"]

#: The most bytes of an array on a host.
_MOST_BYTES = 1 << 30
#: The most bytes of an array that are in the command itself.
_SMALL_BYTES = 64 << 10


class ExecutorClient:
    """Devices of one or more executors.

    Shardings, compile options and layouts are those of placeholders, devices of this process.

    Args:
      device_ids: The devices, ascending.
      link_of: Returns the executor of each device now.
      present: Returns these devices' client in executors, which first open it if they must; another
        one after a program over several of them has failed. Arrays and programs of an earlier
        client remain valid.
      platform: The platform of the executors.
      times: Gets the times of programs on executors; None: they are not compared.
    """

    def __init__(
        self,
        device_ids: Sequence[int],
        link_of: Callable[[], Mapping[int, ExecutorLink]],
        present: Callable[[], PresentClient],
        platform: str = CPU,
        times: ExecutorTimes | None = None,
    ) -> None:
        self.present = present
        self.times = times
        self._link_of = link_of
        self._device_ids = device_ids
        self._found_on: tuple[ExecutorLink | None, Mapping[int, ExecutorLink]] = (None, {})
        stand_for = Placeholders(platform)
        self._placeholders = placeholders = XlaClient(device_ids, stand_for)
        self.platform = placeholders.platform
        self.memory_kinds = stand_for.memory_kinds(placeholders.memory_kinds)
        self.single_sharding = placeholders.single_sharding
        self.hlo_sharding = placeholders.hlo_sharding
        self.default_layout = placeholders.default_layout
        self.identity = placeholders.identity
        self.options = placeholders.options

    def is_on(self, links: Sequence[ExecutorLink]) -> bool:
        """Whether this is one executor, and has all devices now: then no other client is opened."""
        if len(links) > 1:
            return False
        link, link_of = links[0], self._link_of()
        if self._found_on[0] is not link or self._found_on[1] is not link_of:
            if any(link_of.get(i) is not link for i in self._device_ids):
                return False
            # (It holds as long as the mapping does, which does not change.)
            self._found_on = (link, link_of)
        return True

    def ask(
        self, client: int, links: Sequence[ExecutorLink], **body: Any
    ) -> list[pb.ExecutorReport]:
        """Sends a command to executors, and waits for all their reports, or an error."""
        asked = ask_all(links, pb.ExecutorCommand(client=client, **body))
        try:
            first_error(asked)
        except StatusError:
            # Others fail because of one that is lost, and may notice it first.
            for link in links:
                link.await_loss()
            raise
        return [future.result() for future in asked]

    # ---- arrays

    def put(self, spec: ArraySpec, shards: Sequence[Any]) -> RemoteArray:
        """Makes an array; each executor receives its pieces."""
        array = _new(self.present(), spec)
        shards_of: dict[ExecutorLink, list[np.ndarray]] = {}
        for link, shard in zip(array.links, shards, strict=True):
            shards_of.setdefault(link, []).append(np.asarray(shard))
        if max(map(_nbytes, shards_of.values()), default=0) > _MOST_BYTES:
            raise StatusError(
                Code.UNIMPLEMENTED, f"the pieces of an array on a host exceed {_MOST_BYTES} bytes"
            )
        asked: list[futures.Future[pb.ExecutorReport]] = []
        try:
            for link, own in shards_of.items():
                # (Each gives back its budget by itself: it is safe to wait for the next.)
                asked.append(_upload(link, array, spec, own))
        finally:
            # Also if one fails: the array is freed, which must not overtake it.
            futures.wait(asked)
        first_error(asked)
        return array

    def fetch(self, array: RemoteArray) -> list[np.ndarray]:
        """Receives each piece from its executor."""
        with self.reading(array) as pieces:
            return pieces

    @contextlib.contextmanager
    def reading(self, array: RemoteArray) -> Iterator[list[np.ndarray]]:
        """Receives each piece from its executor; the bytes count as under way until the end."""
        links = list(dict.fromkeys(array.links))
        fetch = pb.FetchArray(array=array.number)
        with contextlib.ExitStack() as stack:
            # In one order, so that no two wait for each other.
            for link in sorted(links, key=lambda link: link.order):
                nbytes = array.piece_bytes * array.links.count(link)
                stack.enter_context(link.fetches.taken(nbytes))
            asked = []
            received: dict[ExecutorLink, list[memoryview]] = {link: [] for link in links}
            for link, data in received.items():
                command = pb.ExecutorCommand(client=array.client, fetch=fetch)
                asked.append(link.ask(command, receives=data))
            # (Of all: what is still sent counts as well.)
            futures.wait(asked)
            first_error(asked)
            pieces = {
                link: iter(_pieces(array, link, future.result(), received.pop(link)))
                for link, future in zip(links, asked, strict=True)
            }
            asked.clear()
            yield [next(pieces[link]) for link in array.links]

    def parts(self, array: RemoteArray) -> list[RemoteArray]:
        """Returns an array of each piece."""
        return array.parts()

    def join(self, spec: ArraySpec, parts: Sequence[RemoteArray]) -> RemoteArray:
        """Makes one array of pieces."""
        return self._make(self.present(), "join", spec, parts, [part.memory[0] for part in parts])

    def adopt(self, spec: ArraySpec, parts: Sequence[RemoteArray]) -> RemoteArray:
        """Makes an array of another client's pieces, without a copy if all stay on their hosts."""
        present = self.present()
        if _are_here(present, spec, parts):
            return self._make(present, "adopt", spec, parts, _views(parts))
        return _gathered(present, spec, parts, wholes(parts))

    def copy(self, spec: ArraySpec, parts: Sequence[RemoteArray]) -> RemoteArray:
        """Copies pieces, also from executor to executor."""
        present = self.present()
        if _are_here(present, spec, parts):
            return self._make(present, "copy", spec, parts)
        return _gathered(present, spec, parts, wholes(parts))

    def reinterpret(self, spec: ArraySpec, parts: Sequence[RemoteArray]) -> RemoteArray:
        """Makes an array of the pieces' own memory."""
        return self._make(self.present(), "reinterpret", spec, parts, _views(parts))

    def reshard(self, spec: ArraySpec, held: Place, parts: Sequence[RemoteArray]) -> RemoteArray:
        """Cuts the new pieces out of the old ones, on the executors of the new ones."""
        present = self.present()
        links_of_new = present.links_of(spec)
        links = {*links_of_new, *(part.links[0] for part in parts)}
        if len(links) > 1:
            return _gathered(present, spec, parts, recuts(spec, links_of_new, held, parts))
        array = _new(present, spec)
        body = pb.ReshardArray(
            make=_make_message(array, spec, parts),
            held=held.proto.SerializeToString(),
            held_client=parts[0].client,
        )
        self.ask(array.client, list(links), reshard=body)
        return array

    def is_deleted(self, array: RemoteArray) -> bool:
        """Whether a piece of the array was donated to a program."""
        return array.is_deleted

    def addresses(self, array: RemoteArray) -> list[int]:
        """Returns a number for the memory of each piece."""
        if array.is_deleted:
            raise RuntimeError("the array has been deleted")
        return [id(memory.origin) for memory in array.memory]

    def _make(
        self,
        present: PresentClient,
        method: str,
        spec: ArraySpec,
        parts: Sequence[RemoteArray],
        memory: Sequence[Memory] | None = None,
    ) -> RemoteArray:
        array = _new(present, spec, memory)
        self._ask_each(
            array.client,
            {
                link: {method: _make_message(array, spec, [p for p in parts if p.links[0] is link])}
                for link in dict.fromkeys(array.links)
            },
        )
        return array

    def _ask_each(self, client: int, bodies: Mapping[ExecutorLink, dict[str, Any]]) -> None:
        first_error(
            [link.ask(pb.ExecutorCommand(client=client, **body)) for link, body in bodies.items()]
        )

    # ---- programs

    def compile(
        self,
        program: Any,
        device_ids: Sequence[int],
        options: Any,
        callbacks: Sequence[Callable[..., Any]] = (),
    ) -> RemoteExecutable:
        """Compiles a program on each executor of its devices."""
        if callbacks or not isinstance(program, bytes | str):
            raise StatusError(
                Code.UNIMPLEMENTED,
                "programs that call functions of their client need a proxy with --engine=local",
            )
        text = program.encode() if isinstance(program, str) else program
        return self._compiled(text, device_ids, options, is_serialized=False)

    def load(self, serialized: bytes, device_ids: Sequence[int], options: Any) -> RemoteExecutable:
        """Loads a program on each executor of its devices."""
        return self._compiled(serialized, device_ids, options, is_serialized=True)

    def _compiled(
        self, text: bytes, device_ids: Sequence[int], options: Any, *, is_serialized: bool
    ) -> RemoteExecutable:
        body = pb.CompileProgram(
            text=text,
            options=options.SerializeAsString(),
            devices=device_ids,
            is_serialized=is_serialized,
        )

        def compile_here() -> Executable:
            return self._placeholders.compile(text, device_ids, options)

        # (Other platforms' programs differ from those of placeholders.)
        is_like_here = self.platform == CPU and not is_serialized
        return compiled(self, body, self._link_of, compile_here if is_like_here else None)


def _nbytes(shards: Sequence[np.ndarray]) -> int:
    return sum(shard.nbytes for shard in shards)


def _upload(
    link: ExecutorLink, array: RemoteArray, spec: ArraySpec, shards: Sequence[np.ndarray]
) -> futures.Future[pb.ExecutorReport]:
    """Sends pieces to an executor, once fewer bytes are on their way to it."""
    nbytes = _nbytes(shards)
    put = pb.PutArray(array=array.number, spec=spec_message(spec))
    link.uploads.take(nbytes)
    try:
        sends = None
        if nbytes <= _SMALL_BYTES:
            put.shards.extend(shard.tobytes() for shard in shards)
        else:
            put.sizes.extend(shard.nbytes for shard in shards)
            # (A copy of one that is not in C order is made here, not on the thread of the stream.)
            sends = chunks([flat(shard) for shard in shards])
        asked = link.ask(pb.ExecutorCommand(client=array.client, put=put), sends=sends)
    except BaseException:
        link.uploads.give_back(nbytes)
        raise
    asked.add_done_callback(lambda _ended: link.uploads.give_back(nbytes))
    return asked


def _pieces(
    array: RemoteArray, link: ExecutorLink, report: pb.ExecutorReport, data: Sequence[memoryview]
) -> list[np.ndarray]:
    """Returns the pieces on one executor."""
    if not data:
        # (Not frombuffer, which refuses empty arrays.)
        return [np.ndarray(array.shape, array.dtype, buffer=piece) for piece in report.pieces]
    made = joined([array.piece_bytes] * array.links.count(link), data, f"array {array.number}")
    return [np.ndarray(array.shape, array.dtype, buffer=piece) for piece in made]


def _new(
    present: PresentClient, spec: ArraySpec, memory: Sequence[Memory] | None = None
) -> RemoteArray:
    shape = spec.placing.shard_shape(spec.shape)
    return RemoteArray(present.number, present.links_of(spec), spec.dtype, shape, memory)


def _gathered(
    present: PresentClient,
    spec: ArraySpec,
    parts: Sequence[RemoteArray],
    pieces: Sequence[Piece],
) -> RemoteArray:
    array = _new(present, spec)
    gather(array, spec_message(spec), parts, pieces)
    return array


def _are_here(present: PresentClient, spec: ArraySpec, parts: Sequence[RemoteArray]) -> bool:
    links = present.links_of(spec)
    return all(link is part.links[0] for link, part in zip(links, parts, strict=True))


def _views(parts: Sequence[RemoteArray]) -> list[Memory]:
    """Returns the memory of arrays that share others', but are not donated with them.

    (As XLA does not own their memory, it copies it for a program that takes it.)
    """
    return [Memory(part.memory[0].origin) for part in parts]


def _make_message(
    array: RemoteArray, spec: ArraySpec, parts: Sequence[RemoteArray]
) -> pb.MakeArray:
    return pb.MakeArray(
        array=array.number, spec=spec_message(spec), parts=[part.number for part in parts]
    )
