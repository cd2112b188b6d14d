"""Runs a program on slices, for `sps run` and for submitted jobs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from shared_pathways_service.agent.client import AgentSession
from shared_pathways_service.agent.request import start_of
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cli.child import (
    CommandError,
    Stopped,
    end_by_signal,
    ignoring_signals,
    raise_on_signals,
    run_child,
)
from shared_pathways_service.cli.display import run_summary
from shared_pathways_service.cli.display.output import print_error
from shared_pathways_service.cli.errors import OWN_FAILURE, print_failure
from shared_pathways_service.cli.event_file import appended_events
from shared_pathways_service.connection.progress_display import Progress
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.jax_client import ProxyTarget, is_strict, standalone
from shared_pathways_service.jax_client.plugin import run_notes, sockets
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime import allocator
from shared_pathways_service.runtime.file_failures import explained
from shared_pathways_service.runtime.settings import Settings, private_directory

__all__ = ["Workload", "exit_code_of"]

_FOREVER = float("inf")


def exit_code_of(work: Callable[[], int]) -> int:
    """Returns the exit code that `work` returns, or that stands for its failure, and reports that.

    A signal that ends a program undoes `work`. At a terminal it ends this process then, and so does
    the signal that ended the program.
    """
    try:
        with raise_on_signals():
            return work()
    except Stopped as stopped:
        return end_by_signal(stopped.number)
    except CommandError as error:
        return _report(str(error), error.exit_code)
    except SharedPathwaysError as error:
        print_failure(error)
        return OWN_FAILURE
    except OSError as error:
        return _report(str(error), OWN_FAILURE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """A program with a request for slices.

    Attributes:
      command: The program and its arguments.
      variables: The program's variables, except those for JAX.
      tune_allocator: Whether it keeps freed memory, unless its variables say otherwise.
      home: Where its proxy is; None: as the request says.
      json_events: A file to which every event is appended.
      on_event: Called with every event, on another thread.
      on_start: Called when there are slices, and the program is about to be started.
      on_end: Called when the program has ended, and its connection is about to be closed.
    """

    command: list[str]
    request: SessionRequest
    variables: Mapping[str, str]
    tune_allocator: bool = True
    home: HomeChoice | None = None
    json_events: Path | None = None
    on_event: Callable[[Event], object] = lambda _event: None
    on_start: Callable[[], object] = lambda: None
    on_end: Callable[[], object] = lambda: None

    def run(self) -> int:
        """Runs the program to its end; returns its exit code.

        Raises:
          Stopped: A signal ended the program.
          CommandError: The program cannot be run.
          SharedPathwaysError: There are no slices, or a file cannot be written.
        """
        _check_command(self.command[0], self.variables.get("PATH"))
        settings = Settings.load()
        strict = is_strict(self.request.client.strict)
        with contextlib.ExitStack() as undo:
            # (First: a full disk must not be found only when there are slices.)
            # (The program runs what lies there.)
            cache = private_directory(settings.cache_dir, "SPS_CACHE_DIR", is_shown=True)
            with explained(cache, "SPS_CACHE_DIR"):
                plugin = standalone.place(cache)
            notes = undo.enter_context(run_summary.notes(settings))
            progress = Progress(quiet=settings.log_level in ("ERROR", "CRITICAL"))
            agent = self._open(settings, progress, undo)
            target = ProxyTarget(
                address=agent.snapshot.address,
                token=agent.state.token,
                token_file=agent.state.token_file,
                insecure_credentials=agent.state.insecure_credentials,
                transfer_dir=agent.state.transfer_dir,
                is_remote=agent.state.is_remote,
                local_devices=self.request.client.local_devices,
                strict=strict,
            )
            # Variables of the user take precedence.
            own = allocator.ENVIRONMENT if self.tune_allocator else {}
            environment = _environment({**own, **self.variables}, target, plugin, notes)
            self.on_start()
            code = run_child(self.command, environment)
            try:
                if code and not target.is_remote and _is_gone(target.address):
                    # Its end explains that of the program, but may be reported later.
                    agent.wait_for_failure(timeouts.PROXY_END_REPORT)
            finally:
                self.on_end()
            is_ours = agent.state.token is not None
            if warning := run_summary.warning(notes, is_ours=is_ours):
                progress.print_line(warning)
        if code < 0:
            raise Stopped(-code)
        return code

    def _open(
        self, settings: Settings, progress: Progress, undo: contextlib.ExitStack
    ) -> AgentSession:
        """Returns a connection with its slices, which `undo` closes."""
        sinks: list[Callable[[Event], object]] = [progress, self.on_event]
        if self.json_events is not None:
            kept = appended_events(self.json_events, progress.print_line)
            sinks.append(undo.enter_context(kept))

        def on_event(event: Event) -> None:
            for sink in sinks:
                sink(event)

        progress.begin()
        undo.callback(progress.end)
        orders = start_of(self.request, settings, self.home)
        log = settings.state_dir / "agents" / f"{self.request.name}.log"
        agent = AgentSession(orders, log=log, on_event=on_event)
        undo.push(lambda *_: _close(agent))
        agent.wait(lambda snapshot: snapshot.ready and snapshot.placed, _FOREVER, progress.tick)
        progress.end("connected")
        return agent


def _is_gone(address: str) -> bool:
    """Whether no proxy listens at the address: one that is only slow does."""
    try:
        sockets.connected(address, timeouts.WORKLOAD_CONNECT.s).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except OSError:
        pass
    return False


def _report(message: str, code: int) -> int:
    print_error(message)
    return code


def _check_command(name: str, path: str | None) -> None:
    """Checks that the program exists before anything is started for it."""
    if shutil.which(name, path=path) is not None:
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
        **target.limits(inherited),
        run_notes.NOTES_VARIABLE: str(notes),
        run_notes.PLATFORMS_VARIABLE: target.platforms,
    }
    # After the user's own entries. (An empty entry would mean the current directory.)
    paths = [inherited.get("PYTHONPATH", ""), str(plugin)]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return {name: value for name, value in variables.items() if value is not None}
