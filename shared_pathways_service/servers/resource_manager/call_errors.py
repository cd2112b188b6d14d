"""Translates our errors into the status of a call, for all methods of the service."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.protocol.grpc_errors import abort
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.resource_manager.history_table import HistoryClosed
from shared_pathways_service.servers.resource_manager.outbox import StreamEnded

__all__ = ["Context", "refusing"]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
S = TypeVar("S")
R = TypeVar("R")


def refusing(
    method: Callable[[S, Any, Context], Awaitable[R]],
) -> Callable[[S, Any, Context], Awaitable[R]]:
    """Wraps a method so that our errors end the call with their status."""

    @functools.wraps(method)
    async def call(self: S, request: Any, context: Context) -> R:
        try:
            return await method(self, request, context)
        except SharedPathwaysError as error:
            glog("W", f"refused: {error}")
            await abort(context, error)
        except StreamEnded as ended:
            await abort(context, ended.error, ended.code)
        except HistoryClosed:
            ending = SharedPathwaysError("the server is ending")
            await abort(context, ending, grpc.StatusCode.UNAVAILABLE)

    return call
