"""`sps run`: a program on slices of the service, also one that never heard of it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from shared_pathways_service.agent.client import AgentSession
from shared_pathways_service.agent.request import start_of
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cli.child import (
    CommandError,
    Stopped,
    deaf_to_signals,
    raise_on_signals,
    run_child,
)
from shared_pathways_service.cli.display import run_summary
from shared_pathways_service.cli.display.output import print_error
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.cli.options.option_groups import takes_options
from shared_pathways_service.cli.options.run_options import RunOptions
from shared_pathways_service.connection.progress_display import Progress
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.jax_client import ProxyTarget, is_strict, standalone
from shared_pathways_service.jax_client.plugin import run_notes
from shared_pathways_service.runtime import allocator
from shared_pathways_service.runtime.settings import Settings

__all__ = ["run"]

#: The exit code of our own failures, as that of other programs that run a command.
_OWN_FAILURE = 125
_FOREVER = float("inf")


@takes_place
@takes_options("options", RunOptions)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND...", help="The program and its arguments."),
    ] = None,
    *,
    command: Annotated[
        str | None,
        typer.Option("--command", help="The same as one text, split as a shell splits it."),
    ] = None,
    options: RunOptions,
    place: Place,
) -> None:
    """Run a program on slices of the service.

    Ends with the program's exit code, or with 125 when it could not be started because of us,
    126 when it cannot be run, 127 when there is no such program.
    """
    program = _program(words, command)
    try:
        with raise_on_signals():
            request = place.request(**options.keywords())
            code = _run(program, request, options)
    except Stopped as stopped:
        code = 128 + stopped.number
    except CommandError as error:
        code = _complain(str(error), error.exit_code)
    except SharedPathwaysError as error:
        code = _complain(_described(error), _OWN_FAILURE)
    except OSError as error:
        code = _complain(str(error), _OWN_FAILURE)
    raise typer.Exit(code)


def _program(words: Sequence[str] | None, command: str | None) -> list[str]:
    """Returns the program and its arguments, given in either of two ways."""
    if bool(words) == bool(command):
        problem = "COMMAND and --command are one too many" if words else "Missing COMMAND"
        raise typer.BadParameter(f"{problem}: the program that is to run.")
    if not command:
        return list(words or ())
    try:
        return shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"--command: {error}.") from error


def _described(error: SharedPathwaysError) -> str:
    return f"{error.message} hint: {error.hint}" if error.hint else error.message


def _complain(message: str, code: int) -> int:
    print_error(message)
    return code


def _run(command: list[str], request: SessionRequest, options: RunOptions) -> int:
    _check_command(command[0])
    settings = Settings.load()
    strict = is_strict(request.client.strict)
    with contextlib.ExitStack() as undo:
        progress = Progress(quiet=settings.log_level in ("ERROR", "CRITICAL"))
        events = undo.enter_context(options.json_events.open("a")) if options.json_events else None

        def hear(event: Event) -> None:
            progress(event)
            if events is not None:
                events.write(f"{event.to_json()}\n")
                events.flush()

        progress.begin()
        undo.callback(progress.end)
        orders = start_of(request, settings)
        log = settings.state_dir / "agents" / f"{request.name}.log"
        agent = AgentSession(orders, log=log, on_event=hear)
        undo.push(lambda *_: _close(agent))
        agent.wait(lambda snapshot: snapshot.ready and snapshot.placed, _FOREVER, progress.tick)
        progress.end("connected")
        target = ProxyTarget(
            address=agent.snapshot.address,
            token=agent.token,
            token_file=agent.token_file,
            insecure_credentials=agent.insecure_credentials,
            transfer_dir=agent.transfer_dir,
            local_devices=request.client.local_devices,
            strict=strict,
        )
        plugin = standalone.place(settings.cache_dir)
        notes = undo.enter_context(run_summary.notes(settings))
        # What the user has set stays.
        ours = {**allocator.ENVIRONMENT, **os.environ} if options.tune_allocator else os.environ
        code = run_child(command, _environment(ours, target, plugin, notes))
        if warning := run_summary.warning(notes, is_ours=agent.token is not None):
            progress.warn(warning)
        return code


def _check_command(name: str) -> None:
    """Looks for the program before anything is started for it."""
    if shutil.which(name) is not None:
        return
    if os.sep in name and Path(name).exists():
        raise CommandError(f"{name}: cannot be run: no permission, or a directory", 126)
    raise CommandError(f"{name}: command not found", 127)


def _close(agent: AgentSession) -> None:
    with deaf_to_signals():
        left = agent.close("the program has ended")
    if left is not None:
        print_error(str(left))


def _environment(
    ours: Mapping[str, str], target: ProxyTarget, plugin: Path, notes: Path
) -> Mapping[str, str]:
    """Returns the program's environment."""
    variables = {
        **ours,
        **target.environment,
        run_notes.NOTES_VARIABLE: str(notes),
        run_notes.PLATFORMS_VARIABLE: target.platforms,
    }
    # Behind what the user has there. (An empty entry would mean the current directory.)
    paths = [ours.get("PYTHONPATH", ""), str(plugin)]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return {name: value for name, value in variables.items() if value is not None}
