"""`sps ui`: shows a service as a web page."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer

from shared_pathways_service.api.page_identity import PageIdentity
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_note
from shared_pathways_service.cli.errors import INTERRUPTED, TERMINATED
from shared_pathways_service.cli.lookups.jobs_of_place import job_home_of
from shared_pathways_service.cli.lookups.place_readers import reader_of
from shared_pathways_service.cli.lookups.sessions import live_entry
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.cli.options.identity_options import IdentityOptions, takes_identity
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.runtime.embedded.served_page import served_page, serving_page
from shared_pathways_service.runtime.settings import Settings, private_directory
from shared_pathways_service.web.browser import has_browser, opened_in_browser
from shared_pathways_service.web.jobs_feed import JobsFeed
from shared_pathways_service.web.outer_address import OuterAddress, outer_address
from shared_pathways_service.web.own_socket import removed_at_the_end
from shared_pathways_service.web.page_actions import PageActions
from shared_pathways_service.web.page_guard import ByPermissions, ByToken
from shared_pathways_service.web.page_server import ADDRESS, PageParts, serving
from shared_pathways_service.web.service_feed import ServiceFeed
from shared_pathways_service.web.service_load import load_of

__all__ = ["ui"]

_EXIT_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}

_Port = Annotated[
    int,
    typer.Option(
        min=0, max=65535, help="Serve the page on this port of 127.0.0.1; 0: any free port."
    ),
]
_Socket = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Serve the page on this Unix socket, for a proxy of yours, and not on a port. "
        "There is no token: every user that can open the socket can use the page.",
        show_default=False,
    ),
]
_Behind = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Address at which a proxy of yours serves the page, e.g. "
        "https://hub.example.org/user/ada/proxy/{port}/. By default VS Code's, in its terminal.",
        show_default=False,
    ),
]
_AllowActions = Annotated[
    bool,
    typer.Option(
        "--allow-actions",
        help="Let the page cordon and drain slices, delete and profile connections, cancel and "
        "resubmit jobs, and reserve slices.",
    ),
]
_Runs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIRECTORY",
        help="Show this elastic training run, as `sps report` does; repeatable.",
        show_default=False,
    ),
]


@takes_identity
@takes_place
def ui(
    *,
    port: _Port = 0,
    socket: _Socket = None,
    behind: _Behind = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, and open no browser.")
    ] = False,
    allow_actions: _AllowActions = False,
    run: _Runs = None,
    as_json: AsJson = False,
    place: Place,
    proxy: IdentityOptions,
) -> None:
    """Show a service as a web page: overview, jobs, slices, queue, timeline, usage; live.

    The page is served on this machine alone until Ctrl-C, and is read-only unless --allow-actions
    is given: it then acts with your rights, and asks back before each action. The address that is
    printed contains a token; whoever has it can use the page. With --identity others use it, too:
    there is no token, and a proxy in front of it verifies them.
    """
    place.request()
    identity = proxy.checked()
    if socket is not None and (port or behind is not None):
        named, value = ("--port", port) if port else ("--behind", behind)
        raise InvalidRequestError(
            named, value, "either it or --socket, which has no token and port"
        )
    outer = outer_address(behind, os.environ)
    settings = Settings.load()
    if identity is not None:
        _check_shared(behind, {"--socket": socket, "--allow-actions": allow_actions, "--run": run})
        assert outer is not None
        make_shared = _parts_for_several(proxy.manager, place, settings)
        served = _served_to_others(make_shared, identity, outer, (settings.bind_address, port))
        ended_by = asyncio.run(_show(served, settings, no_browser=True, as_json=as_json))
        raise typer.Exit(_EXIT_CODES[ended_by])
    feed = ServiceFeed(reader_of(place, settings), place.home)
    jobs = JobsFeed(functools.partial(job_home_of, place))
    actions = _actions(place, feed, jobs) if allow_actions else None
    make = functools.partial(
        PageParts,
        feed=feed,
        own=functools.partial(live_entry, settings, place),
        jobs=jobs,
        load=functools.partial(load_of, settings) if place.home == "embedded" else None,
        actions=actions,
        runs=run or (),
    )
    if socket is not None:
        served = _served_at_socket(make, socket.absolute())
    else:
        served = _served_at_port(make, port, outer)
    shown = _show(
        served,
        settings,
        no_browser=no_browser,
        as_json=as_json,
        is_of_machine=place.home == "embedded",
    )
    raise typer.Exit(_EXIT_CODES[asyncio.run(shown)])


def _recorded(settings: Settings, url: str) -> contextlib.AbstractContextManager[None]:
    """Lets other commands find the page of the embedded service; says if there is one already."""
    if (other := served_page(settings.runtime_dir)) is not None:
        print_note(f"another page is served already, at {other}")
    return serving_page(private_directory(settings.runtime_dir, "SPS_RUNTIME_DIR"), url)


def _check_shared(behind: str | None, own: Mapping[str, object]) -> None:
    """Refuses what a page for several people cannot have, which acts for none of them."""
    for name, value in own.items():
        if value:
            raise InvalidRequestError(name, value, "not to be given with --identity")
    if behind is None or "{port}" in behind:
        expected = "with --identity, the address at which the proxy serves the page"
        raise InvalidRequestError("--behind", behind, expected)


def _parts_for_several(
    manager: str | None, place: Place, settings: Settings
) -> Callable[..., PageParts]:
    """Makes the page for several people: without jobs and logs, which are each user's own."""
    if manager is None:
        feed = ServiceFeed(reader_of(place, settings), place.home)
    elif place.home == "kubernetes":
        raise InvalidRequestError("--manager", manager, "either it or a service in a cluster")
    else:
        from shared_pathways_service.operations.service_readers.kubernetes.direct_reader import (  # noqa: PLC0415
            DirectReader,
        )

        feed = ServiceFeed(DirectReader(manager), "kubernetes")
    return functools.partial(PageParts, feed=feed, is_shared=True)


@contextlib.asynccontextmanager
async def _served_to_others(
    make: Callable[..., PageParts],
    identity: PageIdentity,
    outer: OuterAddress,
    where: tuple[str, int],
) -> AsyncIterator[dict[str, str]]:
    """Serves the page to the users of a proxy; yields its addresses."""
    try:
        from shared_pathways_service.web.identity.identity_guard import ByIdentity  # noqa: PLC0415
        from shared_pathways_service.web.identity.key_reading import read_keys  # noqa: PLC0415
        from shared_pathways_service.web.identity.signing_keys import SigningKeys  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "jwt":
            raise
        raise SharedPathwaysError(
            "--identity needs PyJWT, which is not installed",
            hint="pip install 'shared-pathways-service[ui]'",
        ) from error
    address, port = where
    keys = SigningKeys(functools.partial(read_keys, identity))
    make = functools.partial(make, guard=ByIdentity(identity, keys, outer))
    async with contextlib.aclosing(keys), serving(make(), port, address=address) as bound:
        host = f"[{address}]" if ":" in address else address
        yield {"url": f"http://{host}:{bound}/", "outer_url": outer.of_port(bound)}


def _actions(place: Place, feed: ServiceFeed, jobs: JobsFeed) -> PageActions:
    # (-P: nothing is imported from the current directory.)
    sps = [sys.executable, "-P", "-m", "shared_pathways_service.cli"]
    return PageActions(
        feed,
        [*sps, "delete", "--yes", "--json", *place.words, "--"],
        submit_command=[*sps, "submit", "--json", *place.words],
        # (The page's button names the length.)
        profile_command=[*sps, "profile", "--json", "--seconds=5", *place.words, "--"],
        jobs=jobs,
    )


@contextlib.asynccontextmanager
async def _served_at_port(
    make: Callable[..., PageParts], port: int, outer: OuterAddress | None
) -> AsyncIterator[dict[str, str]]:
    """Serves the page on a port; yields its addresses, with its token."""
    token = secrets.token_urlsafe(32)
    guard = ByToken(token, outer)
    async with serving(make(guard=guard), port) as bound:
        addresses = {"url": f"http://{ADDRESS}:{bound}/?token={token}"}
        if outer is not None:
            addresses["outer_url"] = f"{outer.of_port(bound)}?token={token}"
        yield addresses


@contextlib.asynccontextmanager
async def _served_at_socket(
    make: Callable[..., PageParts], path: Path
) -> AsyncIterator[dict[str, str]]:
    """Serves the page on a Unix socket, and removes that at the end; yields its path."""
    async with serving(make(guard=ByPermissions()), path):
        with removed_at_the_end(path):
            yield {"socket": str(path)}


async def _show(
    served: AbstractAsyncContextManager[Mapping[str, str]],
    settings: Settings,
    *,
    no_browser: bool,
    as_json: bool,
    is_of_machine: bool = False,
) -> signal.Signals:
    """Serves a page, and shows where, until a signal; returns the signal."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[signal.Signals] = loop.create_future()

    def end(number: signal.Signals) -> None:
        if not ended.done():
            ended.set_result(number)

    async with contextlib.AsyncExitStack() as undo:
        for number in _EXIT_CODES:
            loop.add_signal_handler(number, end, number)
            undo.callback(loop.remove_signal_handler, number)
        addresses = await undo.enter_async_context(served)
        # (The last one is the proxy's, if there is a proxy.)
        shown = [*addresses.values()][-1]
        if is_of_machine and "url" in addresses:
            undo.enter_context(_recorded(settings, shown))
        if as_json:
            print_json(addresses)
        else:
            print_line(f"The service is shown at {shown}\nCtrl-C ends this.")
        if "url" in addresses and not no_browser and has_browser(os.environ):
            directory = private_directory(settings.runtime_dir, "SPS_RUNTIME_DIR")
            undo.enter_context(opened_in_browser(shown, directory))
        return await ended
