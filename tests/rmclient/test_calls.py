"""Calls send the token, and wait for a resource manager only when they are told to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from harness.processes import DEADLINE_S, run_async
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.rmclient.unary_calls import ManagerCalls


class _Manager(pb_grpc.ResourceManagerServicer):
    """Knows one tenant, and notes which tokens were sent."""

    def __init__(self) -> None:
        self.tokens: list[object] = []

    async def GetStatus(  # noqa: N802 - gRPC's name
        self, _request: pb.GetStatusRequest, context: Any
    ) -> pb.GetStatusResponse:
        self.tokens.append(dict(context.invocation_metadata()).get("authorization"))
        return pb.GetStatusResponse(spares=3)

    async def ReleaseTenant(  # noqa: N802 - gRPC's name
        self, request: pb.ReleaseTenantRequest, context: Any
    ) -> pb.ReleaseTenantResponse:
        self.tokens.append(dict(context.invocation_metadata()).get("authorization"))
        return pb.ReleaseTenantResponse(released=request.tenant == "ada")


def test_calls_send_the_token_and_return_the_answer(own_directories: Path) -> None:
    async def test() -> None:
        address = f"unix:{own_directories / 'rm'}"
        manager = _Manager()  # type: ignore[abstract]
        server = grpc.aio.server()
        pb_grpc.add_ResourceManagerServicer_to_server(manager, server)
        server.add_insecure_port(address)
        async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(DEADLINE_S):
            calls = ManagerCalls(
                stub=pb_grpc.ResourceManagerStub(channel), metadata=bearer("secret")
            )
            # It is waited for, though it does not serve yet.
            asked = asyncio.create_task(calls.status(DEADLINE_S))
            await asyncio.sleep(0)
            await server.start()
            assert (await asked).spares == 3
            assert await calls.release("ada", "done", DEADLINE_S)
            assert not await calls.release("bob", "done", DEADLINE_S)
        await server.stop(0)
        assert manager.tokens == ["Bearer secret"] * 3

    run_async(test())


def test_a_call_that_does_not_wait_fails_at_once(own_directories: Path) -> None:
    async def test() -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(f"unix:{own_directories / 'none'}") as channel:
            calls = ManagerCalls(stub=pb_grpc.ResourceManagerStub(channel))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await calls.status(DEADLINE_S, wait=False)
            return caught.value.code()

    # Waiting would end with DEADLINE_EXCEEDED.
    assert run_async(test()) is grpc.StatusCode.UNAVAILABLE
