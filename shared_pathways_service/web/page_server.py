"""Serves the page of `sps ui` on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web

from shared_pathways_service.errors import (
    AccessDenied,
    InvalidRequestError,
    ServiceNotFound,
    SharedPathwaysError,
)
from shared_pathways_service.operations.usage import read_usage, usage_as_csv, usage_as_dict
from shared_pathways_service.patience import timeouts
from shared_pathways_service.web.connection_details import (
    ConnectionDetails,
    OwnEntry,
    no_own_entry,
)
from shared_pathways_service.web.jobs_feed import JobsFeed
from shared_pathways_service.web.own_socket import own_socket
from shared_pathways_service.web.page_access import HEADERS, is_token
from shared_pathways_service.web.page_actions import PageActions
from shared_pathways_service.web.page_guard import USER_EXPIRES, USER_NAME, PageGuard, Refusal
from shared_pathways_service.web.page_state import difference, holdings_now
from shared_pathways_service.web.service_feed import ServiceFeed
from shared_pathways_service.web.service_questions import (
    HeldOverTime,
    LastDecisions,
    explain,
    read_history,
)
from shared_pathways_service.web.training_runs import TrainingRuns
from shared_pathways_service.web.usage_over_time import MOST_PARTS

__all__ = ["ADDRESS", "HEALTH_PATH", "PageParts", "make_application", "serving"]

ADDRESS = "127.0.0.1"
#: Answers without an identity, on a page that is shared.
HEALTH_PATH = "/healthz"
_STATIC = Path(__file__).parent / "static"
#: Seconds between two signs of life of a stream without changes; the page gives up after three.
_ALIVE_INTERVAL_S = 5.0
#: Milliseconds after which a page that lost its stream connects again.
_RETRY_MS = 1000
#: Owners by whom held slices are told apart over time.
_OWNERS = ("user", "team", "tenant", "instance_type")
#: Seconds of a history that are added up at most.
_LONGEST_S = 366 * 86_400.0
#: Decisions on the first page.
_LAST_DECISIONS = 12
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_PARTS: web.AppKey[PageParts] = web.AppKey("parts")
_CONNECTIONS = web.AppKey("connections", ConnectionDetails)
_RUNS = web.AppKey("runs", TrainingRuns)
_HELD = web.AppKey("held", HeldOverTime)
_DECISIONS = web.AppKey("decisions", LastDecisions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageParts:
    """What a page shows, and what it may do.

    Attributes:
      feed: Reads the service; `ServiceFeed.run` is the caller's to start.
      guard: Lets in requests.
      jobs: This user's submitted jobs; None: several people use it, and it shows none.
      own: Finds this user's connections on this machine.
      load: Reads what the service uses of this machine; None: it is not on this machine.
      actions: The actions that the page may ask for; None: it is read-only.
      runs: Directories of elastic training runs.
      is_shared: Whether several people use it, with the rights of its server. It then shows no logs
        of tenants, and answers probes.
    """

    feed: ServiceFeed
    guard: PageGuard
    jobs: JobsFeed | None = None
    own: OwnEntry = no_own_entry
    load: Callable[[], Mapping[str, Any]] | None = None
    actions: PageActions | None = None
    runs: Sequence[str] = ()
    is_shared: bool = False


def make_application(parts: PageParts) -> web.Application:
    """Makes the application. All its addresses are relative to the page's own."""
    app = web.Application(middlewares=[_guarded_by(parts.guard), _reporting_errors])
    app[_PARTS] = parts
    app[_CONNECTIONS] = ConnectionDetails(parts.feed.reader, parts.own)
    app[_RUNS] = TrainingRuns(parts.runs)
    app[_HELD] = HeldOverTime()
    app[_DECISIONS] = LastDecisions(_LAST_DECISIONS)
    for path, handler in _READ.items():
        app.router.add_get(path, handler)
    if parts.is_shared:
        app.router.add_get(HEALTH_PATH, _health)
    app.router.add_post("/api/actions/{name}", _act)
    app.router.add_static("/static", _STATIC)
    app.on_response_prepare.append(_add_headers)
    app.on_shutdown.append(_end_streams)
    app.on_cleanup.append(_end_actions)
    return app


@contextlib.asynccontextmanager
async def serving(
    parts: PageParts, where: int | Path, *, address: str = ADDRESS
) -> AsyncIterator[int]:
    """Serves the page for the length of the block, and yields its port; 0 with a socket.

    Args:
      parts: The page.
      where: A port, 0: any free one; or the path of a Unix socket to be made.
      address: The address of this machine to bind with a port; loopback, unless each request
        proves its user.

    Raises:
      SharedPathwaysError: The port or the socket cannot be bound.
    """
    runner = web.AppRunner(
        make_application(parts),
        access_log=None,  # its lines would have the token
        shutdown_timeout=timeouts.HTTP_SHUTDOWN.s,
        handler_cancellation=True,
    )
    await runner.setup()
    try:
        bound = await _listen(runner, where, address)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(parts.feed.run())
            yield bound
            reading.cancel()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, where: int | Path, address: str) -> int:
    try:
        if isinstance(where, int):
            await web.TCPSite(runner, address, where, reuse_port=False).start()
            return int(runner.addresses[0][1])
        await web.SockSite(runner, own_socket(where)).start()
    except OSError as error:
        if isinstance(where, int):
            place, hint = f"on {address}:{where}", "without --port any free port is taken"
        else:
            place, hint = f"at {where}", "--socket names a file in a directory of yours"
        raise SharedPathwaysError(
            f"cannot serve the page {place}: {error.strerror or error}", hint=hint
        ) from error
    return 0


def _guarded_by(guard: PageGuard) -> Any:
    """Makes the middleware that lets in only whom the guard does."""

    @web.middleware
    async def guarded(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.path == HEALTH_PATH and request.app[_PARTS].is_shared:
            return await handler(request)
        if (refusal := await guard.refusal(request)) is not None:
            return _refused(refusal)
        response = await handler(request)
        if not response.prepared:
            guard.admit(request, response)
        return response

    return guarded


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers of security to each answer, also to those for errors."""
    response.headers.update(HEADERS)


def _refused(why: Refusal) -> web.Response:
    asked = {"WWW-Authenticate": "Bearer"} if why.status == HTTPStatus.UNAUTHORIZED else {}
    return web.Response(status=why.status, text=why.page, content_type="text/html", headers=asked)


async def _health(_request: web.Request) -> web.StreamResponse:
    """Answers probes, without a word about the service."""
    return web.Response()


@web.middleware
async def _reporting_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except SharedPathwaysError as error:
        told = {"error": error.message, "hint": error.hint or None}
        return web.json_response(told, status=_status_of(error))


def _status_of(error: SharedPathwaysError) -> int:
    codes = {InvalidRequestError: 400, AccessDenied: 403, ServiceNotFound: 404}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), 503)


async def _page(_request: web.Request) -> web.StreamResponse:
    return web.FileResponse(_STATIC / "index.html")


async def _stream(request: web.Request) -> web.StreamResponse:
    """Sends the state, then what changes, as server-sent events.

    A stream ends with the assertion that it began with: the page asks for another one.
    """
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    states = request.app[_PARTS].feed.states()
    expires = request.get(USER_EXPIRES, math.inf)
    before = None
    async with contextlib.aclosing(states):
        waiting = asyncio.ensure_future(anext(states, None))
        try:
            while True:
                done, _ = await asyncio.wait({waiting}, timeout=_ALIVE_INTERVAL_S)
                if time.time() >= expires:
                    await response.write(b"event: again\ndata:\n\n")
                    break
                if not done:
                    await response.write(b"event: alive\ndata:\n\n")
                    continue
                state = waiting.result()
                if state is None:
                    break
                data = state if before is None else difference(before, state)
                event = "state" if before is None else "changes"
                told = f"event: {event}\nretry: {_RETRY_MS}\ndata: {json.dumps(data)}\n\n"
                await response.write(told.encode())
                before = state
                waiting = asyncio.ensure_future(anext(states, None))
        finally:
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
    return response


async def _history(request: web.Request) -> web.StreamResponse:
    since = _number_in(request, "since")
    after = int(_number_in(request, "after", default=0.0))
    tenant = request.query.get("tenant", "")
    manager = await request.app[_PARTS].feed.manager()
    return web.json_response(await read_history(manager, since, after, tenant))


async def _over_time(request: web.Request) -> web.StreamResponse:
    by = request.query.get("by", "user")
    if by not in _OWNERS:
        raise InvalidRequestError("by", by, f"one of {', '.join(_OWNERS)}")
    window_s, parts = _number_in(request, "window_s", 3600.0), _number_in(request, "parts", 60.0)
    if not 0 < window_s <= _LONGEST_S:
        raise InvalidRequestError("window_s", window_s, f"seconds, up to {_LONGEST_S:.0f}")
    if not 1 <= parts <= MOST_PARTS:
        raise InvalidRequestError("parts", parts, f"1 to {MOST_PARTS}")
    feed = request.app[_PARTS].feed
    manager = await feed.manager()
    return web.json_response(
        await request.app[_HELD].read(
            manager, holdings_now(feed.state), by=by, window_s=window_s, parts=int(parts)
        )
    )


async def _decisions(request: web.Request) -> web.StreamResponse:
    manager = await request.app[_PARTS].feed.manager()
    return web.json_response({"decisions": await request.app[_DECISIONS].read(manager)})


async def _load(request: web.Request) -> web.StreamResponse:
    read = request.app[_PARTS].load
    return web.json_response({} if read is None else await asyncio.to_thread(read))


async def _jobs(request: web.Request) -> web.StreamResponse:
    jobs = request.app[_PARTS].jobs
    return web.json_response({"jobs": None if jobs is None else await jobs.all_jobs()})


async def _job_output(request: web.Request) -> web.StreamResponse:
    jobs = request.app[_PARTS].jobs
    if jobs is None:
        raise ServiceNotFound("this page shows no submitted jobs")
    return web.json_response({"lines": await jobs.output(request.query.get("name", ""))})


async def _explain(request: web.Request) -> web.StreamResponse:
    tenant = request.query.get("tenant", "")
    return web.json_response(await explain(await request.app[_PARTS].feed.manager(), tenant))


async def _connection(request: web.Request) -> web.StreamResponse:
    name = request.query.get("name", "")
    return web.json_response(await request.app[_CONNECTIONS].read(name))


async def _log(request: web.Request) -> web.StreamResponse:
    if request.app[_PARTS].is_shared:
        # (They are the tenants', and would be read with the rights of the page.)
        raise AccessDenied(
            "this page shows no logs: several people use it",
            hint="`sps logs` shows them with your own rights",
        )
    name = request.query.get("name", "")
    return web.json_response(await request.app[_CONNECTIONS].log(name))


async def _runs(request: web.Request) -> web.StreamResponse:
    return web.json_response({"runs": request.app[_RUNS].directories})


async def _run(request: web.Request) -> web.StreamResponse:
    directory, seen = request.query.get("run", ""), request.query.get("seen", "")
    return web.json_response(await request.app[_RUNS].report(directory, seen))


async def _usage(request: web.Request) -> web.StreamResponse:
    by, since = request.query.get("by", "user"), _number_in(request, "since")
    answer = await read_usage(await request.app[_PARTS].feed.manager(), by, since)
    return web.json_response({**usage_as_dict(answer, by), "window_s": answer.window_s})


async def _usage_csv(request: web.Request) -> web.StreamResponse:
    by, since = request.query.get("by", "user"), _number_in(request, "since")
    answer = await read_usage(await request.app[_PARTS].feed.manager(), by, since)
    response = web.Response(text=usage_as_csv(answer, by) + "\n", content_type="text/csv")
    response.headers["Content-Disposition"] = 'attachment; filename="usage.csv"'
    return response


async def _allowed(request: web.Request) -> web.StreamResponse:
    """Tells the page whether it may act, the text that it must show then, and its user."""
    actions = request.app[_PARTS].actions
    token = None if actions is None else actions.csrf_token
    user = {"user": request[USER_NAME]} if USER_NAME in request else {}
    return web.json_response({"csrf_token": token, **user})


async def _act(request: web.Request) -> web.StreamResponse:
    actions = request.app[_PARTS].actions
    if actions is None:
        hint = "`sps ui --allow-actions` serves one that is not"
        if request.app[_PARTS].is_shared:
            hint += ", on your machine, with your own rights"
        raise AccessDenied("this page is read-only", hint=hint)
    shown = request.headers.get("X-CSRF-Token")
    is_own = request.app[_PARTS].guard.is_own(request)
    if not is_own or not is_token(shown, actions.csrf_token):
        raise AccessDenied("the request is not the page's own", hint="reload the page")
    try:
        body = await request.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise InvalidRequestError("body", "", "an object of JSON")
    return web.json_response({"done": await actions.act(request.match_info["name"], body)})


async def _end_streams(app: web.Application) -> None:
    await app[_PARTS].feed.close()


async def _end_actions(app: web.Application) -> None:
    actions = app[_PARTS].actions
    if actions is not None:
        await actions.close()


def _number_in(request: web.Request, name: str, default: float = -3600.0) -> float:
    text = request.query.get(name)
    try:
        number = default if text is None else float(text)
    except ValueError:
        raise InvalidRequestError(name, text, "a number") from None
    if not math.isfinite(number) or (name == "after" and not 0 <= number < 2**63):
        raise InvalidRequestError(name, text, "a finite number")
    return number


_READ: Mapping[str, _Handler] = {
    "/": _page,
    "/api/stream": _stream,
    "/api/history": _history,
    "/api/held-over-time": _over_time,
    "/api/decisions": _decisions,
    "/api/load": _load,
    "/api/jobs": _jobs,
    "/api/job-output": _job_output,
    "/api/explain": _explain,
    "/api/connection": _connection,
    "/api/log": _log,
    "/api/runs": _runs,
    "/api/run": _run,
    "/api/usage": _usage,
    "/api/usage.csv": _usage_csv,
    "/api/actions": _allowed,
}
