"""Serves the page of `sps ui` on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
from shared_pathways_service.web.page_access import (
    HEADERS,
    REFUSED_HOST,
    REFUSED_TOKEN,
    cookie_name,
    is_own_host,
    is_same_origin,
    is_token,
)
from shared_pathways_service.web.page_actions import PageActions
from shared_pathways_service.web.page_state import difference
from shared_pathways_service.web.service_feed import ServiceFeed
from shared_pathways_service.web.service_questions import explain, read_history
from shared_pathways_service.web.training_runs import TrainingRuns

__all__ = ["ADDRESS", "make_application", "serving"]

ADDRESS = "127.0.0.1"
_STATIC = Path(__file__).parent / "static"
#: Seconds between two signs of life of a stream without changes; the page gives up after three.
_ALIVE_INTERVAL_S = 5.0
#: Milliseconds after which a page that lost its stream connects again.
_RETRY_MS = 1000
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_FEED = web.AppKey("feed", ServiceFeed)
_CONNECTIONS = web.AppKey("connections", ConnectionDetails)
_RUNS = web.AppKey("runs", TrainingRuns)
_ACTIONS: web.AppKey[PageActions | None] = web.AppKey("actions")


def make_application(
    feed: ServiceFeed,
    token: str,
    own: OwnEntry,
    actions: PageActions | None,
    runs: Sequence[str],
) -> web.Application:
    """Makes the application.

    Args:
      feed: Reads the service; `ServiceFeed.run` is the caller's to start.
      token: The text that a browser must show.
      own: Finds this user's connections on this machine.
      actions: The actions that the page may ask for; None: it is read-only.
      runs: Directories of elastic training runs.
    """
    app = web.Application(middlewares=[_guarded_by(token), _reporting_errors])
    app[_FEED] = feed
    app[_CONNECTIONS] = ConnectionDetails(feed.reader, own)
    app[_ACTIONS] = actions
    app[_RUNS] = TrainingRuns(runs)
    app.router.add_get("/", _page)
    app.router.add_get("/api/stream", _stream)
    app.router.add_get("/api/history", _history)
    app.router.add_get("/api/explain", _explain)
    app.router.add_get("/api/connection", _connection)
    app.router.add_get("/api/log", _log)
    app.router.add_get("/api/runs", _runs)
    app.router.add_get("/api/run", _run)
    app.router.add_get("/api/usage", _usage)
    app.router.add_get("/api/usage.csv", _usage_csv)
    app.router.add_get("/api/actions", _allowed)
    app.router.add_post("/api/actions/{name}", _act)
    app.router.add_static("/static", _STATIC)
    app.on_shutdown.append(_end_streams)
    app.on_cleanup.append(_end_actions)
    return app


@contextlib.asynccontextmanager
async def serving(
    feed: ServiceFeed,
    token: str,
    port: int,
    *,
    own: OwnEntry = no_own_entry,
    actions: PageActions | None = None,
    runs: Sequence[str] = (),
) -> AsyncIterator[int]:
    """Serves the page for the length of the block, and yields the port.

    Args:
      feed: Reads the service.
      token: The text that a browser must show.
      port: Loopback port; 0: any free port.
      own: Finds this user's connections on this machine.
      actions: The actions that the page may ask for; None: it is read-only.
      runs: Directories of elastic training runs.

    Raises:
      SharedPathwaysError: The port cannot be bound.
    """
    runner = web.AppRunner(
        make_application(feed, token, own, actions, runs),
        access_log=None,  # its lines would have the token
        shutdown_timeout=timeouts.HTTP_SHUTDOWN.s,
        handler_cancellation=True,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, ADDRESS, port, reuse_port=False).start()
        except OSError as error:
            raise SharedPathwaysError(
                f"cannot serve the page on {ADDRESS}:{port}: {error.strerror}",
                hint="without --port any free port is taken",
            ) from error
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(feed.run())
            yield runner.addresses[0][1]
            reading.cancel()
    finally:
        await runner.cleanup()


def _guarded_by(token: str) -> Any:
    """Makes the middleware that lets in only who shows the token."""

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not is_own_host(request.host):
            return _refusal(REFUSED_HOST)
        name = cookie_name(_port_of(request))
        shown = request.query.get("token")
        if not is_token(request.cookies.get(name) if shown is None else shown, token):
            return _refusal(REFUSED_TOKEN)
        response = await handler(request)
        if response.prepared:
            return response
        response.headers.update(HEADERS)
        if shown is not None:
            # The page itself, and no redirect: a browser that follows a link of another site sends
            # no strict cookie with the redirect, but does with the page's own requests.
            response.set_cookie(name, token, httponly=True, samesite="Strict", path="/")
        return response

    return guard


def _port_of(request: web.Request) -> int:
    transport = request.transport
    return 0 if transport is None else int(transport.get_extra_info("sockname")[1])


def _refusal(page: str) -> web.Response:
    return web.Response(status=403, text=page, content_type="text/html", headers=HEADERS)


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
    """Sends the state, then what changes, as server-sent events."""
    response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
    await response.prepare(request)
    states = request.app[_FEED].states()
    before = None
    async with contextlib.aclosing(states):
        waiting = asyncio.ensure_future(anext(states, None))
        try:
            while True:
                done, _ = await asyncio.wait({waiting}, timeout=_ALIVE_INTERVAL_S)
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
    return web.json_response(await read_history(await request.app[_FEED].manager(), since, after))


async def _explain(request: web.Request) -> web.StreamResponse:
    tenant = request.query.get("tenant", "")
    return web.json_response(await explain(await request.app[_FEED].manager(), tenant))


async def _connection(request: web.Request) -> web.StreamResponse:
    name = request.query.get("name", "")
    return web.json_response(await request.app[_CONNECTIONS].read(name))


async def _log(request: web.Request) -> web.StreamResponse:
    name = request.query.get("name", "")
    return web.json_response(await request.app[_CONNECTIONS].log(name))


async def _runs(request: web.Request) -> web.StreamResponse:
    return web.json_response({"runs": request.app[_RUNS].directories})


async def _run(request: web.Request) -> web.StreamResponse:
    directory, seen = request.query.get("run", ""), request.query.get("seen", "")
    return web.json_response(await request.app[_RUNS].report(directory, seen))


async def _usage(request: web.Request) -> web.StreamResponse:
    by, since = request.query.get("by", "user"), _number_in(request, "since")
    answer = await read_usage(await request.app[_FEED].manager(), by, since)
    return web.json_response({**usage_as_dict(answer, by), "window_s": answer.window_s})


async def _usage_csv(request: web.Request) -> web.StreamResponse:
    by, since = request.query.get("by", "user"), _number_in(request, "since")
    answer = await read_usage(await request.app[_FEED].manager(), by, since)
    response = web.Response(text=usage_as_csv(answer, by) + "\n", content_type="text/csv")
    response.headers["Content-Disposition"] = 'attachment; filename="usage.csv"'
    return response


async def _allowed(request: web.Request) -> web.StreamResponse:
    """Tells the page whether it may act, and the text that it must show then."""
    actions = request.app[_ACTIONS]
    return web.json_response({"csrf_token": None if actions is None else actions.csrf_token})


async def _act(request: web.Request) -> web.StreamResponse:
    actions = request.app[_ACTIONS]
    if actions is None:
        raise AccessDenied(
            "this page is read-only", hint="`sps ui --allow-actions` serves one that is not"
        )
    shown = request.headers.get("X-CSRF-Token")
    is_own = is_same_origin(request.headers.get("Origin"), request.host)
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
    await app[_FEED].close()


async def _end_actions(app: web.Application) -> None:
    actions = app[_ACTIONS]
    if actions is not None:
        await actions.close()


def _number_in(request: web.Request, name: str, *, default: float = -3600.0) -> float:
    text = request.query.get(name)
    try:
        number = default if text is None else float(text)
    except ValueError:
        raise InvalidRequestError(name, text, "a number") from None
    if not math.isfinite(number) or (name == "after" and not 0 <= number < 2**63):
        raise InvalidRequestError(name, text, "a finite number")
    return number
