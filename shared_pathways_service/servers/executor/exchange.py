"""Parts of arrays on their way from one executor to another."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

import grpc
import numpy as np

from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol import executors_pb2_grpc
from shared_pathways_service.protocol.auth import bearer, shows
from shared_pathways_service.servers.devices.array_bytes import chunks, fill, flat
from shared_pathways_service.servers.devices.status_errors import Code, StatusError

__all__ = ["Offers", "cut", "gathered", "taken"]

#: Bytes of a transfer for which there is another second.
_BYTES_PER_S = 1 << 20
_OPTIONS = (
    # A connection of its own, that ends with the transfer.
    ("grpc.use_local_subchannel_pool", 1),
    # (Seconds: the same as between the proxy and an executor.)
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Executors have no proxy between.
    ("grpc.enable_http_proxy", 0),
)

#: Opens a transfer: yields its bytes, given their number.
Take = Callable[[pb.Transfer, int], Generator[bytes]]


class _Offer:
    """Parts of arrays, once they are there, and whether they may still be sent."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.parts: Sequence[np.ndarray] | None = None
        self.is_freed = False


class Offers:
    """What this executor offers to others. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offers: dict[int, _Offer] = {}
        self._being_taken: dict[int, _Offer] = {}

    def announce(self, number: int, token: str) -> None:
        """Begins an offer, which has nothing yet."""
        with self._lock:
            self._offers[number] = _Offer(token)

    def hold(self, number: int, parts: Sequence[np.ndarray]) -> None:
        """Keeps parts of arrays until they are taken or freed, unless they are freed already."""
        with self._lock:
            if number in self._offers:
                self._offers[number].parts = parts

    def free(self, number: int) -> None:
        """Ends an offer; a stream that has begun ends with CANCELLED."""
        with self._lock:
            self._offers.pop(number, None)
            offer = self._being_taken.get(number)
        if offer is not None:
            offer.is_freed = True

    def have(self, header: str) -> bool:
        """Whether an offer has the token of an ``Authorization`` header."""
        with self._lock:
            return any(shows(header, offer.token) for offer in self._offers.values())

    def take(self, number: int, header: str) -> Generator[bytes]:
        """Yields the bytes of an offer, which ends with it.

        Args:
          number: The transfer.
          header: The ``Authorization`` header of the call.

        Raises:
          StatusError: There is no such offer with this token, or it was freed meanwhile.
        """
        with self._lock:
            offer = self._offers.get(number)
            # (One answer for all: which numbers exist is not for others to know.)
            if offer is None or offer.parts is None or not shows(header, offer.token):
                raise StatusError(
                    Code.PERMISSION_DENIED, f"transfer {number} is not offered with this token"
                )
            self._being_taken[number] = self._offers.pop(number)
        try:
            for data in chunks(map(flat, offer.parts)):
                if offer.is_freed:
                    raise StatusError(Code.CANCELLED, f"transfer {number} was freed")
                yield data.tobytes()
        finally:
            with self._lock:
                del self._being_taken[number]


def cut(piece: np.ndarray, region: pb.Region) -> np.ndarray:
    """Returns a part of an array, which shares its memory."""
    # (With the ellipsis it is an array, also if it has no axes.)
    index: tuple[Any, ...] = (*map(slice, region.begin, region.end), ...)
    part: np.ndarray = piece[index]
    return part


def gathered(
    body: pb.GatherArray,
    dtype: np.dtype,
    shape: tuple[int, ...],
    here: Sequence[np.ndarray],
    take: Take,
) -> list[np.ndarray]:
    """Returns the pieces of a gathered array, one for each device here.

    Args:
      body: The command.
      dtype: The type of the array.
      shape: The shape of each piece.
      here: The arrays of the parts that are here, in their order.
      take: Opens a transfer.
    """
    made = [np.empty(shape, dtype) for _ in body.pieces]
    held = iter(here)
    awaited: list[list[np.ndarray]] = [[] for _ in body.transfers]
    for whole, piece in zip(made, body.pieces, strict=True):
        for part in piece.parts:
            target = cut(whole, part.region)
            if part.HasField("here"):
                target[...] = cut(next(held), part.here.region)
            else:
                awaited[part.transfer].append(target)
    # Each host begins at another one: an executor has a limit of connections, and gets one for each
    # of these.
    order = list(zip(body.transfers, awaited, strict=True))
    random.shuffle(order)
    for transfer, targets in order:
        size = sum(target.nbytes for target in targets)
        with contextlib.closing(take(transfer, size)) as data:
            fill(targets, data, f"transfer {transfer.number}")
    return [made[i] for i in body.piece_of]


def taken(transfer: pb.Transfer, size: int) -> Generator[bytes]:
    """Yields the bytes of a transfer of another executor; a `Take`.

    Raises:
      StatusError: The executor is gone, it does not offer this, or takes too long.
    """
    with grpc.insecure_channel(transfer.address, options=_OPTIONS) as channel:
        stream = executors_pb2_grpc.ExecutorsStub(channel).Take(
            pb.TakeOffered(transfer=transfer.number),
            timeout=timeouts.EXECUTOR_TRANSFER.s + size / _BYTES_PER_S,
            metadata=bearer(transfer.token),
        )
        try:
            for message in stream:
                yield message.data
        except grpc.RpcError as error:
            raise StatusError(
                Code(error.code().value[0]),
                f"taking from the executor at {transfer.address}: {error.details()}",
            ) from error
        finally:
            stream.cancel()
