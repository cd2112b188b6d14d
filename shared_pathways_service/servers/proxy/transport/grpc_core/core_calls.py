"""A proxy's calls on a `CoreServer`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
    invalid_argument,
)
from shared_pathways_service.servers.grpc_core.core_call import CoreCall
from shared_pathways_service.servers.grpc_core.core_server import Route
from shared_pathways_service.servers.proxy.transport.calls import (
    DOWNLOAD,
    SESSION,
    UPLOAD,
    Call,
    Calls,
    Served,
)
from shared_pathways_service.servers.proxy.transport.grpc_core.core_callbacks import CoreOutbox
from shared_pathways_service.servers.proxy.transport.grpc_core.core_sessions import CoreAnswers
from shared_pathways_service.servers.proxy.transport.late_requests import LateRequests

__all__ = ["routes"]

#: A message up to this size is held back: if it is the last of a download, it is sent together with
#: the status.
_SMALL = 64 << 10


def routes(
    calls: Calls, sessions: futures.Executor, plain: futures.Executor, callbacks: futures.Executor
) -> Mapping[str, Route]:
    """Returns the route of each method, on the threads for its kind of calls."""
    transfers = calls.transfers.pool
    found = {path: Route(plain, _plain(answer, calls.late)) for path, answer in calls.plain.items()}
    found[UPLOAD] = Route(transfers, lambda call: calls.upload(call.messages(), call))
    found[DOWNLOAD] = Route(transfers, _download(calls.download, calls.late_downloads))
    found[SESSION] = Route(sessions, lambda call: _session(calls, call))
    for path, serve in calls.streams.items():
        found[path] = Route(callbacks, functools.partial(_serve, serve))
    return found


def _plain(
    answer: Callable[[bytes, Call], bytes], late: LateRequests
) -> Callable[[CoreCall], bytes]:
    return lambda call: answer(_request(call, late), call)


def _download(
    bring: Callable[[bytes, Call], Iterator[bytes]], late: LateRequests
) -> Callable[[CoreCall], bytes | None]:
    def behave(call: CoreCall) -> bytes | None:
        held_back: bytes | None = None
        for message in bring(_request(call, late), call):
            if held_back is not None:
                call.send(held_back)
                held_back = None
            if len(message) <= _SMALL:
                held_back = message
            else:
                call.send(message)
        return held_back

    return behave


def _session(calls: Calls, call: CoreCall) -> None:
    answers = CoreAnswers(calls.service.limits, call)
    session = calls.service.open_session(call.metadata, answers)
    try:
        end: StatusError | None = None
        try:
            answers.serve(session)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client receives it
            end = from_exception(error).copy()
        calls.note_end(end)
        answers.flush()
        if end is not None:
            # (A raised error refers to this frame, which refers to `end`.)
            raise end.copy()
    finally:
        calls.service.close_session(session)


def _serve(served_by: Callable[[Mapping[str, Any]], Served], call: CoreCall) -> None:
    served = served_by(call.metadata)
    outbox = CoreOutbox(call)
    with served.attached(outbox):
        outbox.serve(served.receive)


def _request(call: CoreCall, late: LateRequests) -> bytes:
    def give_up(reason: str) -> None:
        call.fail(StatusError(Code.DEADLINE_EXCEEDED, reason))

    with late.awaited(give_up) as awaited:
        request = call.receive()
        awaited.has_arrived = request is not None
    if request is None:
        raise invalid_argument("the call has no request")
    return request
