"""Results of callbacks: what a program declares, and no less."""

from __future__ import annotations

import numpy as np
import pytest

from shared_pathways_service.protocol import callbacks_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.callbacks.callback_messages import (
    BYTES_OF_ANY_LENGTH,
    Results,
    ValueType,
)


def answer_of(nbytes: int) -> pb.CallbackAnswer:
    answer = pb.CallbackAnswer(call=1, data=bytes(nbytes))
    answer.results.add(dtype="uint8", shape=[nbytes])
    return answer


def test_a_declared_largest_answer_requires_its_full_size() -> None:
    # XLA copies as many bytes as the program declares.
    declared = ValueType(np.dtype(np.uint8), BYTES_OF_ANY_LENGTH.shape)
    with pytest.raises(StatusError, match=r"answered uint8\[5\], not uint8\[16777216\]") as raised:
        Results((declared,), answer_of(5))
    assert raised.value.code is Code.INVALID_ARGUMENT


def test_an_answer_at_compile_time_has_any_length_up_to_the_largest() -> None:
    (found,) = Results((BYTES_OF_ANY_LENGTH,), answer_of(5)).arrays()
    assert found.tobytes() == bytes(5)
    (largest,) = BYTES_OF_ANY_LENGTH.shape
    with pytest.raises(StatusError, match="a callback failed"):
        Results((BYTES_OF_ANY_LENGTH,), answer_of(largest + 1))
