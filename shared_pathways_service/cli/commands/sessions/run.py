"""`sps run`: runs any program on slices of the service."""

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
    ignoring_signals,
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

#: The exit code of failures of `sps run` itself, as of other programs that run a command.
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
        typer.Option(
            "--command", help="Run this command, split as by a shell, instead of COMMAND."
        ),
    ] = None,
    options: RunOptions,
    place: Place,
) -> None:
    """Run a program on slices of the service.

    The exit code is the program's. It is 125 for failures of `sps` itself, 126 if the program
    cannot be run, and 127 if it does not exist.
    """
    program = _program(words, command)
    try:
        with raise_on_signals():
            request = place.request(**options.keywords())
            code = _run(program, request, options)
    except Stopped as stopped:
        code = 128 + stopped.number
    except CommandError as error:
        code = _report(str(error), error.exit_code)
    except SharedPathwaysError as error:
        code = _report(_described(error), _OWN_FAILURE)
    except OSError as error:
        code = _report(str(error), _OWN_FAILURE)
    raise typer.Exit(code)


def _program(words: Sequence[str] | None, command: str | None) -> list[str]:
    """Returns the program and its arguments from COMMAND or --command."""
    if bool(words) == bool(command):
        problem = "Give COMMAND or --command, not both" if words else "Missing COMMAND"
        raise typer.BadParameter(f"{problem}: the program to run.")
    if not command:
        return list(words or ())
    try:
        return shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"--command: {error}.") from error


def _described(error: SharedPathwaysError) -> str:
    return f"{error.message} hint: {error.hint}" if error.hint else error.message


def _report(message: str, code: int) -> int:
    print_error(message)
    return code


def _run(command: list[str], request: SessionRequest, options: RunOptions) -> int:
    _check_command(command[0])
    settings = Settings.load()
    strict = is_strict(request.client.strict)
    with contextlib.ExitStack() as undo:
        progress = Progress(quiet=settings.log_level in ("ERROR", "CRITICAL"))
        events = undo.enter_context(options.json_events.open("a")) if options.json_events else None

        def on_event(event: Event) -> None:
            progress(event)
            if events is not None:
                events.write(f"{event.to_json()}\n")
                events.flush()

        progress.begin()
        undo.callback(progress.end)
        orders = start_of(request, settings)
        log = settings.state_dir / "agents" / f"{request.name}.log"
        agent = AgentSession(orders, log=log, on_event=on_event)
        undo.push(lambda *_: _close(agent))
        agent.wait(lambda snapshot: snapshot.ready and snapshot.placed, _FOREVER, progress.tick)
        progress.end("connected")
        target = ProxyTarget(
            address=agent.snapshot.address,
            token=agent.state.token,
            token_file=agent.state.token_file,
            insecure_credentials=agent.state.insecure_credentials,
            transfer_dir=agent.state.transfer_dir,
            local_devices=request.client.local_devices,
            strict=strict,
        )
        plugin = standalone.place(settings.cache_dir)
        notes = undo.enter_context(run_summary.notes(settings))
        # Variables of the user take precedence.
        variables = (
            {**allocator.ENVIRONMENT, **os.environ} if options.tune_allocator else os.environ
        )
        code = run_child(command, _environment(variables, target, plugin, notes))
        if warning := run_summary.warning(notes, is_ours=agent.state.token is not None):
            progress.print_line(warning)
        return code


def _check_command(name: str) -> None:
    """Checks that the program exists before anything is started for it."""
    if shutil.which(name) is not None:
        return
    if os.sep in name and Path(name).exists():
        raise CommandError(f"{name}: cannot be run: no permission, or it is a directory", 126)
    raise CommandError(f"{name}: command not found", 127)


def _close(agent: AgentSession) -> None:
    with ignoring_signals():
        left = agent.close("the program has ended")
    if left is not None:
        print_error(str(left))


def _environment(
    inherited: Mapping[str, str], target: ProxyTarget, plugin: Path, notes: Path
) -> Mapping[str, str]:
    """Returns the program's environment."""
    variables = {
        **inherited,
        **target.environment,
        run_notes.NOTES_VARIABLE: str(notes),
        run_notes.PLATFORMS_VARIABLE: target.platforms,
    }
    # After the user's own entries. (An empty entry would mean the current directory.)
    paths = [inherited.get("PYTHONPATH", ""), str(plugin)]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return {name: value for name, value in variables.items() if value is not None}
