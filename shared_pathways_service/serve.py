"""`sps serve`: runs the embedded service in the foreground."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Annotated

import typer

from shared_pathways_service.cli.child import is_first_process, run_child
from shared_pathways_service.cli.display.output import print_line, print_note
from shared_pathways_service.cli.display.serve_display import (
    Display,
    JsonLines,
    LiveTable,
    PlainLines,
    banner,
)
from shared_pathways_service.cli.errors import INTERRUPTED, TERMINATED
from shared_pathways_service.cli.lookups.logouts import logout_note
from shared_pathways_service.cli.options.option_groups import takes_options
from shared_pathways_service.cli.options.policy_options import Policies, takes_policies
from shared_pathways_service.cli.options.serve_options import ServeOptions
from shared_pathways_service.cli.user_unit import UNIT, write_unit
from shared_pathways_service.flags.supervisor import SupervisorOptions
from shared_pathways_service.runtime import descriptors
from shared_pathways_service.runtime.embedded.served_page import served_page
from shared_pathways_service.runtime.inherited_signals import reset_inherited_signals
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.servers.supervisor.supervisor import Supervisor

__all__ = ["serve"]

_EXIT_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


@takes_policies
@takes_options("options", ServeOptions)
def serve(
    *,
    install: Annotated[
        bool,
        typer.Option(
            "--install",
            help="Do not run it, but write a unit with these options for your systemd, which "
            "starts the service with the machine and keeps it when you log out.",
        ),
    ] = False,
    options: ServeOptions,
    policies: Policies,
) -> None:
    """Run the embedded service in the foreground, and show the holders of its slices.

    Limits of a proxy apply to every tenant's proxy. proxy_options= of connect() may request lower
    limits of the same names, but not higher ones.

    On SIGINT and SIGTERM the service ends all its processes, and exits with 130 or 143. A second
    signal kills the processes.
    """
    supervisor_options = options.for_supervisor(policies)
    if install:
        _install()
        return
    if is_first_process():
        # (Which reaps the orphans of jobs.)
        code = run_child([sys.executable, *sys.orig_argv[1:]], os.environ)
        raise typer.Exit(code if code >= 0 else 128 - code)
    reset_inherited_signals()
    descriptors.raise_limit()
    descriptors.check_limit()
    display = _display(as_json=options.as_json)
    settings = Settings.load()
    # (A log may be read by others, who could use the token in the address.)
    served = served_page(settings.runtime_dir) if sys.stdout.isatty() else None
    page = served or "`sps ui` shows it in the browser"
    display.introduce(f"{banner(dict(supervisor_options.slices), options.spares)}\nPage: {page}")
    if note := logout_note(os.getpid()):
        print_note(note)
    raise typer.Exit(asyncio.run(_serve(supervisor_options, settings, display)))


def _install() -> None:
    path = write_unit([word for word in sys.argv[1:] if word != "--install"])
    print_line(f"wrote {path}")
    print_note(
        f"start it now and with each login: `systemctl --user daemon-reload`, then "
        f"`systemctl --user enable --now {UNIT}`; also without a login: `loginctl enable-linger`"
    )


def _display(*, as_json: bool) -> Display:
    if as_json:
        return JsonLines()
    return LiveTable() if sys.stdout.isatty() else PlainLines()


async def _serve(options: SupervisorOptions, settings: Settings, display: Display) -> int:
    """Runs the service to its end; returns the exit code."""
    code = 0
    supervisor = Supervisor(options, settings, display.show)
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        nonlocal code
        if code:
            supervisor.stop_at_once(f"a second signal, {number.name}")
        else:
            code = _EXIT_CODES[number]
            supervisor.stop(number.name)

    for number in _EXIT_CODES:
        loop.add_signal_handler(number, on_signal, number)
    async with display.following(supervisor.status):
        await supervisor.run()
    return code
