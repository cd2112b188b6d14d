"""The command `sps`: its table of commands, each in a module that is imported on its call.

A command is a function whose annotations are its options. Imports of this module must be fast.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from shared_pathways_service.cli.errors import FAILED, print_system_error, reporting_errors
from shared_pathways_service.runtime.standard_streams import open_closed_streams
from shared_pathways_service.version import __version__

__all__ = ["COMMANDS", "Command", "command", "command_group", "main"]

#: Set by the shell's completion; typer derives the name from the program's.
_COMPLETION = "_SPS_COMPLETE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """The location of a command, and its help.

    Attributes:
      help: Its line in `sps --help`.
      runs_another: Whether its arguments are a program with the program's own options.
    """

    module: str
    function: str
    help: str
    runs_another: bool = False

    def load(self) -> Callable[..., Any]:
        """Imports the command."""
        module = importlib.import_module(self.module)
        function: Callable[..., Any] = getattr(module, self.function)
        return function


COMMANDS = {
    "run": Command(
        module="shared_pathways_service.cli.commands.sessions.run",
        function="run",
        help="Run a program on slices of the service.",
        runs_another=True,
    ),
    "submit": Command(
        module="shared_pathways_service.cli.commands.jobs.submit",
        function="submit",
        help="Hand a program over to the service, which runs it on slices; print the job's name.",
        runs_another=True,
    ),
    "wait": Command(
        module="shared_pathways_service.cli.commands.jobs.wait",
        function="wait",
        help="Wait for a submitted job, and exit with its program's exit code.",
    ),
    "attach": Command(
        module="shared_pathways_service.cli.commands.jobs.attach",
        function="attach",
        help="Show the output and the progress of a submitted job, until it ends or you press "
        "Ctrl-C.",
    ),
    "cancel": Command(
        module="shared_pathways_service.cli.commands.jobs.cancel",
        function="cancel",
        help="End a submitted job: its program gets SIGTERM, and is killed 10 seconds later.",
    ),
    "serve": Command(
        module="shared_pathways_service.serve",
        function="serve",
        help="Run the embedded service in the foreground, and show the holders of its slices.",
    ),
    "list": Command(
        module="shared_pathways_service.cli.commands.sessions.list",
        function="list_connections",
        help="List your connections and submitted jobs, after deleting what dead programs left "
        "behind.",
    ),
    "testbed": Command(
        module="shared_pathways_service.cli.commands.clusters.testbed",
        function="bring_up",
        help="Run a Kubernetes cluster of local processes on this machine, until Ctrl-C.",
    ),
    "status": Command(
        module="shared_pathways_service.cli.commands.sessions.status",
        function="status",
        help="Show the service: its processes, slices, holders and waiting tenants.",
    ),
    "logs": Command(
        module="shared_pathways_service.cli.commands.sessions.logs",
        function="logs",
        help="Show the output of a job, or the log of a proxy, executors, the resource manager or "
        "workers.",
    ),
    "profile": Command(
        module="shared_pathways_service.cli.commands.sessions.profile",
        function="profile",
        help="Profile a connection's proxy and its executors, while its program runs.",
    ),
    "delete": Command(
        module="shared_pathways_service.cli.commands.sessions.delete",
        function="delete",
        help="End a connection: delete its proxy, and release its slices. Or forget an ended job.",
    ),
    "reap": Command(
        module="shared_pathways_service.cli.commands.sessions.reap",
        function="reap",
        help="Delete what your dead programs left behind, and nothing of other users.",
    ),
    "doctor": Command(
        module="shared_pathways_service.cli.commands.sessions.doctor",
        function="doctor",
        help="Check everything that a connection needs, and say how to fix what fails.",
    ),
    "verify": Command(
        module="shared_pathways_service.cli.commands.clusters.verify",
        function="verify",
        help="Test a service: connect, compute, share it, disturb it, and leave nothing behind.",
    ),
    "render": Command(
        module="shared_pathways_service.cli.commands.clusters.render",
        function="render",
        help="Print objects for `kubectl create -f -`, or the JobSet of a PathwaysJob (--file).",
    ),
    "deploy": Command(
        module="shared_pathways_service.cli.commands.clusters.deploy",
        function="deploy",
        help="Create a service in a cluster, and wait until all its slices are ready.",
    ),
    "undeploy": Command(
        module="shared_pathways_service.cli.commands.clusters.undeploy",
        function="undeploy",
        help="Delete a service once it has no connections, and wait until its pods have ended.",
    ),
    "upgrade": Command(
        module="shared_pathways_service.cli.commands.clusters.upgrade",
        function="upgrade",
        help="Recreate a service with changes, once it has no connections.",
    ),
    "hotswap": Command(
        module="shared_pathways_service.cli.commands.clusters.hotswap",
        function="hotswap",
        help="Drain a node pool of a high-priority JobSet, and measure how it moves and returns.",
    ),
    "checkpoints": Command(
        module="shared_pathways_service.cli.commands.training.checkpoints",
        function="checkpoints",
        help="List the checkpoints of a run: step, epoch, loss, size, state.",
    ),
    "chaos": Command(
        module="shared_pathways_service.cli.commands.training.chaos",
        function="chaos",
        help="Disturb the embedded service at random times, to test the programs that use it.",
    ),
    "report": Command(
        module="shared_pathways_service.cli.commands.training.report",
        function="report",
        help="Show how an elastic training run spent its time, and draw its timeline.",
    ),
    "top": Command(
        module="shared_pathways_service.cli.commands.manager.top",
        function="top",
        help="Show holders of slices, executors, waiting tenants and utilization, continuously.",
    ),
    "stragglers": Command(
        module="shared_pathways_service.cli.commands.manager.stragglers",
        function="stragglers",
        help="Show how long programs take on each host, and which hosts are slow.",
    ),
    "ui": Command(
        module="shared_pathways_service.cli.commands.manager.ui",
        function="ui",
        help="Show a service as a web page: overview, jobs, slices, queue, timeline, usage; live.",
    ),
    "events": Command(
        module="shared_pathways_service.cli.commands.manager.events",
        function="events",
        help="Show the decisions of the resource manager, oldest first.",
    ),
    "explain": Command(
        module="shared_pathways_service.cli.commands.manager.explain",
        function="explain",
        help="Show why a tenant waits, was moved, was refused or ended.",
    ),
    "usage": Command(
        module="shared_pathways_service.cli.commands.manager.usage",
        function="usage",
        help="Show slice-hours held and hours waited, by user, tenant, team or type.",
    ),
    "cordon": Command(
        module="shared_pathways_service.cli.commands.manager.cordon",
        function="cordon",
        help="Stop new placements on a slice; its holder keeps it.",
    ),
    "drain": Command(
        module="shared_pathways_service.cli.commands.manager.cordon",
        function="drain",
        help="Cordon a slice, and move its holder to another one after a grace period.",
    ),
    "uncordon": Command(
        module="shared_pathways_service.cli.commands.manager.cordon",
        function="uncordon",
        help="Undo `sps cordon` or `sps drain`.",
    ),
    "reserve": Command(
        module="shared_pathways_service.cli.commands.manager.reserve",
        function="reserve",
        help="Reserve slices of a type for a user or a team, for a period of time.",
    ),
    "reservations": Command(
        module="shared_pathways_service.cli.commands.manager.reserve",
        function="reservations",
        help="List reservations: slices, owner, period, and how many slices are in use.",
    ),
    "unreserve": Command(
        module="shared_pathways_service.cli.commands.manager.reserve",
        function="unreserve",
        help="Cancel a reservation; tenants that hold slices by it keep them.",
    ),
    "replay": Command(
        module="shared_pathways_service.cli.commands.manager.replay",
        function="replay",
        help="Run recorded events again, and compare the decisions with the recorded ones.",
    ),
}


def main(
    arguments: Sequence[str] | None = None, *, defaults: Mapping[str, Any] | None = None
) -> None:
    """Runs `sps` and ends the process.

    Args:
      arguments: By default those of the process.
      defaults: By command, values of its parameters that the arguments do not name.
    """
    # gRPC would report each ended connection on standard error; commands report errors themselves.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    open_closed_streams()
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    wanted = next((word for word in words if not word.startswith("-")), None)
    group = typer.main.get_command(_app(wanted))
    try:
        group.main(args=words, prog_name="sps", default_map=defaults)
    except OSError as error:
        # (Only of a help text or the version: commands report their own errors.)
        print_system_error(error)
        sys.exit(FAILED)


def command(name: str) -> Any:
    """Returns a command as its parser represents it: typer's own kind of click's command."""
    return command_group(name).commands[name]


def command_group(wanted: str | None, commands: Mapping[str, Command] = COMMANDS) -> Any:
    """Returns a group of commands as its parser represents it; imports only the wanted one.

    Commands that are not those of `sps` raise their errors.
    """
    return typer.main.get_command(_app(wanted, commands))


def _app(wanted: str | None, commands: Mapping[str, Command] = COMMANDS) -> typer.Typer:
    """Makes the application, and imports only the wanted command."""
    app = typer.Typer(
        add_completion=commands is COMMANDS,
        name="sps",
        help="Run JAX programs on slices of a shared Pathways service, and operate the service.",
        no_args_is_help=True,
        # Plain text: importing rich takes longer than `sps --help` should take.
        rich_markup_mode=None,
    )
    app.callback()(_options_of_all)
    # A shell that completes a line needs the options of the command on that line.
    completing = _COMPLETION in os.environ
    report: Callable[..., Any] = reporting_errors if commands is COMMANDS else _raising_errors
    for name, known in commands.items():
        settings: dict[str, Any] = {
            "allow_interspersed_args": not known.runs_another,
            # Upstream spells options with underscores (--gcs_bucket); both spellings are accepted.
            "token_normalize_func": lambda word: word.replace("_", "-"),
        }
        function = known.load() if completing or name == wanted else _not_loaded
        app.command(name, help=known.help, context_settings=settings)(report(function))
    return app


def _raising_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _not_loaded() -> None:
    raise AssertionError("another command was called")


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"sps {__version__}\n")
        raise typer.Exit


def _options_of_all(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None: ...
