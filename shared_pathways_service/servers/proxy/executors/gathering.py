"""Arrays made of parts of others, whose bytes go from executor to executor."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent import futures

from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.interface import ArraySpec, Place
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.executors.awaiting import first_error
from shared_pathways_service.servers.proxy.executors.executor_link import (
    ExecutorLink,
    new_number,
)
from shared_pathways_service.servers.proxy.executors.host_addresses import meeting_host
from shared_pathways_service.servers.proxy.executors.remote_arrays import RemoteArray
from shared_pathways_service.servers.xla.resharding import (
    Bounds,
    Fragment,
    bounds_of,
    fragments,
)

__all__ = ["Piece", "gather", "recuts", "wholes"]


#: The parts of a piece, among other arrays.
Piece = tuple[Fragment, ...]


def wholes(parts: Sequence[RemoteArray]) -> list[Piece]:
    """Returns the pieces that are other arrays, one after the other."""
    wholes = [tuple((0, size) for size in part.shape) for part in parts]
    return [(Fragment(i, whole, whole),) for i, whole in enumerate(wholes)]


def recuts(
    spec: ArraySpec, links: Sequence[ExecutorLink], held: Place, parts: Sequence[RemoteArray]
) -> list[Piece]:
    """Returns the pieces of an array as parts of its pieces in another place.

    Args:
      spec: The array.
      links: The executor of each of its pieces.
      held: The other place.
      parts: The pieces there.
    """
    have = [bounds_of(index, spec.shape) for index in held.pieces(spec.shape)]
    # Of replicas, the one on the same executor, if there is one: the last in a dictionary counts.
    nearest: dict[ExecutorLink, dict[Bounds, int]] = {}
    for link in links:
        if link not in nearest:
            order = sorted(range(len(parts)), key=lambda i: parts[i].links[0] is link)
            nearest[link] = {have[i]: i for i in order}
    return [
        fragments(nearest[link], bounds_of(index, spec.shape))
        for link, index in zip(links, spec.placing.pieces(spec.shape), strict=True)
    ]


def gather(
    array: RemoteArray,
    spec: pb.ExecutorArraySpec,
    parts: Sequence[RemoteArray],
    pieces: Sequence[Piece],
) -> None:
    """Has executors make an array, and waits until they have.

    Args:
      array: The new array.
      spec: What is known of it.
      parts: Arrays of one piece each, on any executors.
      pieces: The parts of each piece of the new array among `parts`.

    Raises:
      StatusError: DATA_LOSS if an executor is lost, or what else went wrong.
    """
    plan = _Plan(array, spec, parts)
    for link, piece in zip(array.links, pieces, strict=True):
        plan.add(link, piece)
    try:
        first_error(plan.offer())
        first_error(plan.gather())
    except StatusError as error:
        plan.explain(error)
        raise
    finally:
        plan.free()


class _Plan:
    """The transfers that make one array: senders, receivers and parts."""

    def __init__(
        self, array: RemoteArray, spec: pb.ExecutorArraySpec, parts: Sequence[RemoteArray]
    ) -> None:
        self._array = array
        self._spec = spec
        self._parts = parts
        self._bodies: dict[ExecutorLink, pb.GatherArray] = {}
        # The index of a piece that an executor has on several devices.
        self._known: dict[tuple[ExecutorLink, Piece], int] = {}
        # From one executor to another, with a client there, and the index among the other's.
        self._offers: dict[tuple[ExecutorLink, ExecutorLink], tuple[int, int, pb.OfferParts]] = {}

    def add(self, link: ExecutorLink, piece: Piece) -> None:
        """Adds the next piece of the array, on this executor."""
        body = self._bodies.get(link)
        if body is None:
            body = self._bodies[link] = pb.GatherArray(array=self._array.number, spec=self._spec)
        index = self._known.setdefault((link, piece), len(body.pieces))
        body.piece_of.append(index)
        if index < len(body.pieces):
            return
        made = body.pieces.add()
        for fragment in piece:
            part = self._parts[fragment.held]
            source = pb.ArrayPart(array=part.number, region=_region(fragment.source))
            added = made.parts.add(region=_region(fragment.target))
            if part.links[0] is link:
                added.here.CopyFrom(source)
            else:
                added.transfer = self._offered(part, link, body, source)

    def offer(self) -> list[futures.Future[pb.ExecutorReport]]:
        """Has executors offer what others need."""
        return [
            sender.ask(pb.ExecutorCommand(client=client, offer=offer))
            for (sender, _), (client, _, offer) in self._offers.items()
        ]

    def gather(self) -> list[futures.Future[pb.ExecutorReport]]:
        """Has executors make the array, once all is offered."""
        client = self._array.client
        return [
            link.ask(pb.ExecutorCommand(client=client, gather=body))
            for link, body in self._bodies.items()
        ]

    def explain(self, error: StatusError) -> None:
        """Raises the error of a lost executor if it is the reason of another one."""
        if error.code is Code.DATA_LOSS or not self._offers:
            return
        # The receiver may have noticed it first.
        senders = list(dict.fromkeys(sender for sender, _ in self._offers))
        meet = pb.MeetHosts()
        first_error(
            [sender.ask(pb.ExecutorCommand(meet=meet)) for sender in senders],
            timeouts.TRANSFER_FAILURE.s,
        )
        meeting_host(list(dict.fromkeys(link.address for pair in self._offers for link in pair)))

    def free(self) -> None:
        """Ends all offers, whether they were taken or not."""
        for (sender, _), (_, _, offer) in self._offers.items():
            sender.free("transfers", offer.transfer)

    def _offered(
        self, part: RemoteArray, receiver: ExecutorLink, body: pb.GatherArray, source: pb.ArrayPart
    ) -> int:
        sender = part.links[0]
        found = self._offers.get((sender, receiver))
        if found is None:
            number, token = new_number(), secrets.token_urlsafe()
            offer = pb.OfferParts(transfer=number, token=token)
            found = self._offers[sender, receiver] = (part.client, len(body.transfers), offer)
            body.transfers.add(number=number, token=token, address=sender.address)
        found[2].parts.append(source)
        return found[1]


def _region(bounds: Bounds) -> pb.Region:
    return pb.Region(begin=[begin for begin, _ in bounds], end=[end for _, end in bounds])
