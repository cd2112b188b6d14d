"""Parts of arrays as messages: those that protobuf writes and reads."""

from __future__ import annotations

import pytest

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.chunks import Chunk, parsed_chunk, serialized_chunk


@pytest.mark.parametrize("message", [pb.ExecutorCommands, pb.ExecutorReports])
@pytest.mark.parametrize("number", [1, 127, 128, 1 << 40])
@pytest.mark.parametrize("size", [1, 127, 128, 1 << 20])
def test_chunks_are_protobufs_messages(
    message: type[pb.ExecutorCommands | pb.ExecutorReports], number: int, size: int
) -> None:
    data = bytes(size)
    by_protobuf = message(bytes_of=number, data=data).SerializeToString()
    chunk = Chunk(number, memoryview(data))
    assert serialized_chunk(chunk) == by_protobuf
    assert parsed_chunk(by_protobuf) == chunk


def test_other_messages_are_no_chunks() -> None:
    assert parsed_chunk(b"") is None
    commands = pb.ExecutorCommands(commands=[pb.ExecutorCommand(number=7)])
    assert parsed_chunk(commands.SerializeToString()) is None


def test_a_chunk_that_is_cut_off_is_refused() -> None:
    whole = serialized_chunk(Chunk(3, memoryview(b"abc")))
    with pytest.raises(ValueError, match="a chunk of 2 bytes in place of 3"):
        parsed_chunk(whole[:-1])
