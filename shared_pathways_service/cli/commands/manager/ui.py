"""`sps ui`: shows a service as a web page."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.errors import INTERRUPTED, TERMINATED
from shared_pathways_service.cli.lookups.place_readers import reader_of
from shared_pathways_service.cli.lookups.sessions import live_entry
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.runtime.settings import Settings, private_directory
from shared_pathways_service.web.browser import has_browser, opened_in_browser
from shared_pathways_service.web.page_actions import PageActions
from shared_pathways_service.web.page_server import ADDRESS, serving
from shared_pathways_service.web.service_feed import ServiceFeed

__all__ = ["ui"]

_EXIT_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


@takes_place
def ui(
    *,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Serve the page on this port of 127.0.0.1; 0: any free port."
        ),
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, and open no browser.")
    ] = False,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Let the page cordon and drain slices, delete connections and reserve slices.",
        ),
    ] = False,
    run: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Show this elastic training run, as `sps report` does; repeatable.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Show a service as a web page: slices, tenants, queue, timeline and usage, live.

    The page is served on this machine alone until Ctrl-C, and is read-only unless --allow-actions
    is given: it then acts with your rights, and asks back before each action. The address that is
    printed contains a token; whoever has it can use the page.
    """
    place.request()
    settings = Settings.load()
    feed = ServiceFeed(reader_of(place, settings), place.home)
    actions = PageActions(feed, _delete_command(place)) if allow_actions else None
    own = functools.partial(live_entry, settings, place)
    page = functools.partial(serving, feed, port=port, own=own, actions=actions, runs=run or ())
    ended_by = asyncio.run(_serve(page, settings, no_browser=no_browser, as_json=as_json))
    raise typer.Exit(_EXIT_CODES[ended_by])


def _delete_command(place: Place) -> list[str]:
    """Returns the command that deletes a connection at a place, without the connection's name."""
    module = "shared_pathways_service.cli"
    # (-P: nothing is imported from the current directory.)
    return [sys.executable, "-P", "-m", module, "delete", "--yes", "--json", *place.words, "--"]


async def _serve(
    page: Callable[[str], AbstractAsyncContextManager[int]],
    settings: Settings,
    *,
    no_browser: bool,
    as_json: bool,
) -> signal.Signals:
    """Serves a page, which is made with its token, until a signal; returns the signal."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[signal.Signals] = loop.create_future()

    def end(number: signal.Signals) -> None:
        if not ended.done():
            ended.set_result(number)

    token = secrets.token_urlsafe(32)
    async with contextlib.AsyncExitStack() as undo:
        for number in _EXIT_CODES:
            loop.add_signal_handler(number, end, number)
            undo.callback(loop.remove_signal_handler, number)
        bound = await undo.enter_async_context(page(token))
        url = f"http://{ADDRESS}:{bound}/?token={token}"
        if as_json:
            print_json({"url": url})
        else:
            print_line(f"The service is shown at {url}\nCtrl-C ends this.")
        if not no_browser and has_browser(os.environ):
            directory = private_directory(settings.runtime_dir, "SPS_RUNTIME_DIR")
            undo.enter_context(opened_in_browser(url, directory))
        return await ended
