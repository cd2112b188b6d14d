"""The magic ``%sps``: runs a command that a line of a notebook names."""

from __future__ import annotations

import html
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from shared_pathways_service import cli
from shared_pathways_service.cli import COMMANDS, Command
from shared_pathways_service.cli.lookups.sessions import find_entry
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.magics.child_commands import CommandFailed, run_command
from shared_pathways_service.magics.notebook_commands import live_connection
from shared_pathways_service.magics.page import Pages
from shared_pathways_service.magics.tab_completion import completions
from shared_pathways_service.runtime.settings import Settings

__all__ = ["SpsMagic", "load"]

_OWN: Mapping[str, Command] = {
    "connect": Command(
        module="shared_pathways_service.magics.notebook_commands",
        function="connect",
        help="Connect this notebook's JAX to slices.",
    ),
    "release": Command(
        module="shared_pathways_service.magics.notebook_commands",
        function="release",
        help="Release the slices of this notebook's connection.",
    ),
}
_COMMANDS: Mapping[str, Command] = {**_OWN, **COMMANDS}
_HELP = ("--help", "-h")
#: The error of click's parser. (Typer has its own copy of click, and exports only a subclass.)
_ParserError: Any = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


class SpsMagic:
    """The magic of one shell."""

    def __init__(self) -> None:
        self._pages = Pages()

    def sps(self, line: str) -> object:
        """Commands of the Shared Pathways Service.

        %sps connect tpuv6e:2x2=2 --queue-timeout 600    get slices for this notebook's JAX
        %sps status                                      the service: slices, holders, queue
        %sps ui                                          the service as a web page
        %sps release                                     give the slices back

        All other commands of `sps` work as well, and for a connection in a cluster they use its
        service. `%sps` lists them, and `%sps COMMAND --help` describes one. The value of
        `connection = %sps connect ...` is the connection.
        """
        from IPython.core.error import UsageError  # noqa: PLC0415 - only ever called by IPython

        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"%sps {line}: {error}") from None
        try:
            return self._run(words)
        except _ParserError as error:
            raise UsageError(f"%sps: {error.format_message()}") from None
        except typer.Exit:
            return None
        except CommandFailed as failed:
            raise _in_one_line(failed, str(failed)) from None
        except SharedPathwaysError as error:
            hint = f" hint: {error.hint}" if error.hint else ""
            raise _in_one_line(error, f"error: {error.message}{hint}") from None
        except KeyboardInterrupt as interrupt:
            raise _in_one_line(interrupt, "interrupted") from None

    def complete(self, _shell: object, event: Any) -> list[str]:
        """Returns completions, as a hook of IPython."""
        _, _, line = event.text_until_cursor.lstrip().partition("sps")
        return completions(line, _group_of)

    def _run(self, words: Sequence[str]) -> object:
        name = words[0] if words else "--help"
        is_child = name in COMMANDS and name not in _OWN
        if is_child and name == "ui" and not set(_HELP) & set(words):
            self._show_page(_at_connection(words)[1:])
        elif is_child:
            run_command(_at_connection(words))
        else:
            group = _group_of(name)
            with group.make_context("%sps", [*(words or _HELP[:1])]) as context:
                return group.invoke(context)
        return None

    def _show_page(self, options: Sequence[str]) -> None:
        from IPython.display import HTML, display  # noqa: PLC0415 - only ever called by IPython

        address = html.escape(self._pages.open(options))
        link = f'<a href="{address}" target="_blank" rel="noreferrer">Open the service</a>'
        text = f"{link} (on the kernel's machine, until the kernel ends)"
        display(HTML(text))  # type: ignore[no-untyped-call]


def load(shell: Any) -> None:
    """Adds the magic to a shell."""
    magic = SpsMagic()
    shell.register_magic_function(magic.sps, "line", "sps")
    shell.set_hook("complete_command", magic.complete, str_key="%sps")


def _group_of(wanted: str | None) -> Any:
    return cli.command_group(wanted, _COMMANDS)


def _at_connection(words: Sequence[str]) -> Sequence[str]:
    """Adds the place of the live connection to a command that names no other one."""
    connection = live_connection()
    entry = None
    if connection is not None:
        entry = find_entry(Settings.load(), connection.proxy_job_name, Place())
    if entry is None or not (place := Place.of_service(entry).words):
        return words
    name, *options = words
    command = cli.command(name)
    given = command.make_context(name, options, resilient_parsing=True).params
    named = (given.get(key) for key in ("cluster", "context", "pathways_service", "name"))
    if "pathways_service" not in given or any(named):
        return words
    return [name, *place, *options]


def _in_one_line(error: BaseException, text: str) -> BaseException:
    """Has IPython show an error as a line, without a traceback."""
    error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]
    return error
