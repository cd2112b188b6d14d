"""The messages that are read without protobuf are those of the schema."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.tunnel.link import ifrt_messages

NUMBERS = st.integers(0, 2**64 - 1)


@given(NUMBERS, NUMBERS)
def test_a_copy_and_its_answer(op_id: int, handle: int) -> None:
    request = proxy_pb2.IfrtRequest()
    request.request_metadata.op_id = op_id
    request.copy_to_host_buffer_request.array_handle = 7
    request.copy_to_host_buffer_request.host_buffer_handle = handle
    request.copy_to_host_buffer_request.byte_strides.strides.append(4)
    assert ifrt_messages.requested_copy(request.SerializeToString()) == (op_id, handle)

    answer = proxy_pb2.IfrtResponse()
    answer.response_metadata.op_id = op_id
    answer.copy_to_host_buffer_response.SetInParent()
    assert ifrt_messages.answered_copy(answer.SerializeToString()) == op_id


@given(NUMBERS)
def test_other_messages_are_no_copies(session: int) -> None:
    request = proxy_pb2.IfrtRequest()
    request.delete_array_request.SetInParent()
    answer = proxy_pb2.IfrtResponse()
    answer.init_response.session_id = session
    answer.init_response.platform_name = "cpu"
    assert ifrt_messages.requested_copy(request.SerializeToString()) is None
    assert ifrt_messages.answered_copy(answer.SerializeToString()) is None
    assert ifrt_messages.session_of_init(answer.SerializeToString()) == session
    assert ifrt_messages.session_of_init(b"") is None


@given(NUMBERS, NUMBERS, st.binary(max_size=300))
def test_a_lookup_and_its_answer(session: int, handle: int, data: bytes) -> None:
    encoded = ifrt_messages.encode_lookup(session, handle)
    request = proxy_pb2.GrpcHostBufferLookupRequest(session_id=session, handle=handle)
    assert proxy_pb2.GrpcHostBufferLookupRequest.FromString(encoded) == request
    assert ifrt_messages.lookup_key(request.SerializeToString()) == (session, handle)

    answer = proxy_pb2.GrpcHostBufferLookupResponse(data=data)
    assert ifrt_messages.encode_lookup_answer(data) == answer.SerializeToString()
    assert ifrt_messages.lookup_data(answer.SerializeToString()) == data


@given(st.binary(max_size=60))
def test_no_bytes_raise(message: bytes) -> None:
    ifrt_messages.requested_copy(message)
    ifrt_messages.answered_copy(message)
    ifrt_messages.session_of_init(message)
    ifrt_messages.lookup_key(message)
    ifrt_messages.lookup_data(message)


def test_paths_are_those_of_the_service() -> None:
    assert f"/{ifrt.SERVICE}/IfrtSession".encode() == ifrt_messages.SESSION_PATH
    assert f"/{ifrt.SERVICE}/GetVersion".encode() == ifrt_messages.VERSION_PATH
    assert f"/{ifrt.SERVICE}/HostBufferLookup".encode() == ifrt_messages.LOOKUP_PATH
