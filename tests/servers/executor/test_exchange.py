"""Parts of arrays on their way from one executor to another, without a network."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import ml_dtypes
import numpy as np
import pytest

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.executor.exchange import Offers, cut, gathered

HEADER = "Bearer a-token"
#: Several chunks.
LARGE = np.arange(1 << 19, dtype=np.float64)


def offers_of(*parts: np.ndarray) -> Offers:
    offers = Offers()
    offers.announce(1, "a-token")
    offers.hold(1, parts)
    return offers


def code_of(data: Generator[bytes]) -> Code:
    with pytest.raises(StatusError) as raised:
        next(data)
    return raised.value.code


def test_an_offer_is_taken_once_and_with_its_token() -> None:
    offers = offers_of(LARGE, LARGE[:3])
    assert code_of(offers.take(1, "Bearer another")) is Code.PERMISSION_DENIED
    assert code_of(offers.take(1, "")) is Code.PERMISSION_DENIED
    assert code_of(offers.take(2, HEADER)) is Code.PERMISSION_DENIED
    chunks = list(offers.take(1, HEADER))
    assert b"".join(chunks) == LARGE.tobytes() + LARGE[:3].tobytes()
    assert max(map(len, chunks)) <= 1 << 20
    assert code_of(offers.take(1, HEADER)) is Code.PERMISSION_DENIED


def test_a_freed_offer_keeps_nothing() -> None:
    offers = offers_of(LARGE)
    taking = offers.take(1, HEADER)
    next(taking)
    offers.free(1)
    assert code_of(taking) is Code.CANCELLED
    # Before its arrays are there.
    offers.announce(3, "a-token")
    assert code_of(offers.take(3, HEADER)) is Code.PERMISSION_DENIED
    offers.free(3)
    offers.hold(3, [LARGE])
    assert code_of(offers.take(3, HEADER)) is Code.PERMISSION_DENIED


def region(*bounds: tuple[int, int]) -> pb.Region:
    return pb.Region(begin=[begin for begin, _ in bounds], end=[end for _, end in bounds])


def take_from(parts: Sequence[np.ndarray]) -> Generator[bytes]:
    return offers_of(*parts).take(1, HEADER)


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, ml_dtypes.bfloat16, ml_dtypes.int4])
def test_pieces_of_parts_here_and_elsewhere(dtype: type) -> None:
    whole: np.ndarray = (np.arange(48) % 7).reshape(6, 8).astype(dtype)
    left, right = whole[:, :5], whole[:, 5:]
    # The upper half, on two devices, of columns that are here and of others that are not; then the
    # lower half.
    body = pb.GatherArray(piece_of=[0, 1, 0], transfers=[pb.Transfer(number=1)])
    for begin in (0, 3):
        rows = (begin, begin + 3)
        piece = body.pieces.add()
        here = pb.ArrayPart(region=region(rows, (0, 5)))
        piece.parts.add(region=region((0, 3), (0, 5)), here=here)
        piece.parts.add(region=region((0, 3), (5, 8)), transfer=0)
    offered = [cut(right, region((begin, begin + 3), (0, 3))) for begin in (0, 3)]
    pieces = gathered(body, whole.dtype, (3, 8), [left, left], lambda *_: take_from(offered))
    assert [piece.tolist() for piece in pieces] == [
        whole[begin : begin + 3].tolist() for begin in (0, 3, 0)
    ]


def of_one_part(*bounds: tuple[int, int]) -> pb.GatherArray:
    body = pb.GatherArray(piece_of=[0], transfers=[pb.Transfer(number=1)])
    body.pieces.add().parts.add(region=region(*bounds), transfer=0)
    return body


@pytest.mark.parametrize("shape", [(), (0, 3), LARGE.shape])
def test_whole_pieces(shape: tuple[int, ...]) -> None:
    whole = LARGE[: int(np.prod(shape))].reshape(shape)
    body = of_one_part(*((0, size) for size in shape))
    sizes = []

    def take(_transfer: pb.Transfer, size: int) -> Generator[bytes]:
        sizes.append(size)
        return take_from([whole])

    (piece,) = gathered(body, whole.dtype, shape, [], take)
    np.testing.assert_array_equal(piece, whole)
    assert sizes == [whole.nbytes]


@pytest.mark.parametrize("size", [0, 3, 5])
def test_another_number_of_bytes_than_announced(size: int) -> None:
    with pytest.raises(StatusError, match="another number of bytes"):
        gathered(of_one_part((0, 4)), LARGE.dtype, (4,), [], lambda *_: take_from([LARGE[:size]]))
