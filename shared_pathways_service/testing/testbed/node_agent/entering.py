"""Writes the script by which `kubectl exec` enters a container, anew for each run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["EnterScript"]

_FAILURE = 126


class EnterScript:
    """A program that runs its arguments in a container.

    Attributes:
      path: Of the program; it exists as long as the pod.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(
        self, pid: int, namespaces: Sequence[str], env: Mapping[str, str], directory: Path
    ) -> None:
        """Enables commands.

        Args:
          pid: The id of the container's process 1 on this machine.
          namespaces: Its own namespaces, as flags of `nsenter`; empty: commands are refused,
            because its process 1 would be this machine's.
          env: The container's variables.
          directory: The working directory of a command.
        """
        if not namespaces:
            self._refuse("without PID namespaces a container cannot be told from this machine")
            return
        variables = [f"{name}={value}" for name, value in env.items()]
        into = ["nsenter", f"--target={pid}", *namespaces, "--"]
        run = ["env", "-i", f"--chdir={directory}", *variables]
        self._write(f'exec {shlex.join([*into, *run])} "$@"')

    def close(self) -> None:
        """Makes the script fail, because the container is not running."""
        self._refuse("the container does not run")

    def _refuse(self, why: str) -> None:
        self._write(f"echo {shlex.quote(why)} >&2\nexit {_FAILURE}")

    def _write(self, command: str) -> None:
        # Atomically, because it may be run now. Private: it contains the container's variables.
        partial = self.path.with_name(f"{self.path.name}.new")
        partial.touch(mode=0o700)
        partial.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8", errors="surrogateescape")
        partial.replace(self.path)
