"""The command `sps`: its commands, each in a module that is imported when it is called.

A command is a function whose annotations are its options. What is imported here must not be slow.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from shared_pathways_service.cli.errors import reporting_errors
from shared_pathways_service.version import __version__

__all__ = ["COMMANDS", "command", "main"]

#: Set by the shell's completion; the name is made of the program's by typer.
_COMPLETION = "_SPS_COMPLETE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Command:
    """Where a command is.

    Attributes:
      help: What `sps --help` says of it.
      runs_another: Whether its arguments are another program's, options too.
    """

    module: str
    function: str
    help: str
    runs_another: bool = False

    def load(self) -> Callable[..., None]:
        """Imports the command."""
        module = importlib.import_module(self.module)
        function: Callable[..., None] = getattr(module, self.function)
        return function


COMMANDS = {
    "run": _Command(
        module="shared_pathways_service.cli.commands.sessions.run",
        function="run",
        help="Run a program on slices of the service.",
        runs_another=True,
    ),
    "serve": _Command(
        module="shared_pathways_service.serve",
        function="serve",
        help="Run the embedded service in the foreground, and show who holds what.",
    ),
    "list": _Command(
        module="shared_pathways_service.cli.commands.sessions.list",
        function="list_connections",
        help="List your connections. What dead programs left behind is taken down first.",
    ),
    "testbed": _Command(
        module="shared_pathways_service.cli.commands.clusters.testbed",
        function="bring_up",
        help="Bring up Kubernetes on this machine, pods as local processes; Ctrl-C takes all down.",
    ),
    "status": _Command(
        module="shared_pathways_service.cli.commands.sessions.status",
        function="status",
        help="Show the service: its processes, its slices, who holds them, and who waits.",
    ),
    "logs": _Command(
        module="shared_pathways_service.cli.commands.sessions.logs",
        function="logs",
        help="Show the log of a proxy, of the resource manager, or of the workers.",
    ),
    "delete": _Command(
        module="shared_pathways_service.cli.commands.sessions.delete",
        function="delete",
        help="End a connection from outside: its proxy, and with it its hold on slices.",
    ),
    "reap": _Command(
        module="shared_pathways_service.cli.commands.sessions.reap",
        function="reap",
        help="Take down what your dead programs left behind; nothing of anybody else.",
    ),
    "doctor": _Command(
        module="shared_pathways_service.cli.commands.sessions.doctor",
        function="doctor",
        help="Check all that a connection needs, and say what would mend it.",
    ),
    "verify": _Command(
        module="shared_pathways_service.cli.commands.clusters.verify",
        function="verify",
        help="Prove that a service works: connect, compute, share it, disturb it, leave no trace.",
    ),
    "render": _Command(
        module="shared_pathways_service.cli.commands.clusters.render",
        function="render",
        help="Print objects for `kubectl create -f -`, or the JobSet of a PathwaysJob (--file).",
    ),
    "deploy": _Command(
        module="shared_pathways_service.cli.commands.clusters.deploy",
        function="deploy",
        help="Create a service in a cluster, and wait until all its slices are ready.",
    ),
    "undeploy": _Command(
        module="shared_pathways_service.cli.commands.clusters.undeploy",
        function="undeploy",
        help="Take a service away, once it has no connections, and wait for the end of its pods.",
    ),
    "upgrade": _Command(
        module="shared_pathways_service.cli.commands.clusters.upgrade",
        function="upgrade",
        help="Make a service anew with what is said here changed, once it has no connections.",
    ),
    "hotswap": _Command(
        module="shared_pathways_service.cli.commands.clusters.hotswap",
        function="hotswap",
        help="Drain a node pool under a high-priority JobSet, and time how it moves and returns.",
    ),
    "checkpoints": _Command(
        module="shared_pathways_service.cli.commands.training.checkpoints",
        function="checkpoints",
        help="List the checkpoints of a run: step, epoch, loss, size, state.",
    ),
    "chaos": _Command(
        module="shared_pathways_service.cli.commands.training.chaos",
        function="chaos",
        help="Disturb the embedded service at random moments, to see what becomes of who uses it.",
    ),
    "report": _Command(
        module="shared_pathways_service.cli.commands.training.report",
        function="report",
        help="Show where the time of an elastic training run went, and draw its timeline.",
    ),
    "top": _Command(
        module="shared_pathways_service.cli.commands.manager.top",
        function="top",
        help="Show who holds what, who waits for what, and how much is in use, again and again.",
    ),
    "events": _Command(
        module="shared_pathways_service.cli.commands.manager.events",
        function="events",
        help="Show what the resource manager decided, the oldest first.",
    ),
    "explain": _Command(
        module="shared_pathways_service.cli.commands.manager.explain",
        function="explain",
        help="Show why a tenant waits, was moved, was refused or ended.",
    ),
    "usage": _Command(
        module="shared_pathways_service.cli.commands.manager.usage",
        function="usage",
        help="Show who used how much: slice-hours held, and hours in the queue.",
    ),
    "cordon": _Command(
        module="shared_pathways_service.cli.commands.manager.cordon",
        function="cordon",
        help="Have nobody new placed on a slice; who holds it keeps it.",
    ),
    "drain": _Command(
        module="shared_pathways_service.cli.commands.manager.cordon",
        function="drain",
        help="Cordon a slice, and move its holder to another one after a notice and a grace.",
    ),
    "uncordon": _Command(
        module="shared_pathways_service.cli.commands.manager.cordon",
        function="uncordon",
        help="Undo `sps cordon` and `sps drain`.",
    ),
    "reserve": _Command(
        module="shared_pathways_service.cli.commands.manager.reserve",
        function="reserve",
        help="Keep slices of a type for a user or a team, from one moment until another.",
    ),
    "reservations": _Command(
        module="shared_pathways_service.cli.commands.manager.reserve",
        function="reservations",
        help="List what is reserved: slices, for whom, from when until when, how many are in use.",
    ),
    "unreserve": _Command(
        module="shared_pathways_service.cli.commands.manager.reserve",
        function="unreserve",
        help="End a reservation before its time; who holds slices by it keeps them.",
    ),
    "replay": _Command(
        module="shared_pathways_service.cli.commands.manager.replay",
        function="replay",
        help="Run a log of events again, and compare what is decided with what was.",
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
    # gRPC would tell on standard error of each connection that ends; commands do that themselves.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    wanted = next((word for word in words if not word.startswith("-")), None)
    group = typer.main.get_command(_app(wanted))
    group.main(args=words, prog_name="sps", default_map=defaults)


def command(name: str) -> Any:
    """Returns a command as its parser has it: typer's own kind of click's command."""
    group: Any = typer.main.get_command(_app(name))
    return group.commands[name]


def _app(wanted: str | None) -> typer.Typer:
    """Makes the application, of which only the wanted command is imported."""
    app = typer.Typer(
        name="sps",
        help="Slices of a shared Pathways service, for JAX programs.",
        no_args_is_help=True,
        # Plain text: what draws boxes takes longer to import than `sps --help` should take.
        rich_markup_mode=None,
    )
    app.callback()(_options_of_all)
    # A shell that completes a line asks for the options of whichever command stands there.
    completing = _COMPLETION in os.environ
    for name, known in COMMANDS.items():
        settings: dict[str, Any] = {
            "allow_interspersed_args": not known.runs_another,
            # Upstream writes --gcs_bucket, others --queue-timeout: both are understood.
            "token_normalize_func": lambda word: word.replace("_", "-"),
        }
        function = known.load() if completing or name == wanted else _not_loaded
        app.command(name, help=known.help, context_settings=settings)(reporting_errors(function))
    return app


def _not_loaded() -> None:
    raise AssertionError("another command was asked for")


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
