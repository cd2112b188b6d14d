"""Writes commands for people to paste: in any shell, they act on the cluster of the message."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from shared_pathways_service.api.service_choice import place_options

__all__ = ["CommandPlace", "place_in_files"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandPlace:
    """A cluster, as the options of a command name it; without options: that of a pod.

    Attributes:
      cluster: A GKE cluster; with its `project` and `region`.
      context: A kubeconfig context.
      kubeconfig: A value of ``KUBECONFIG`` that has the context; empty: every shell has it.
    """

    cluster: str = ""
    project: str = ""
    region: str = ""
    context: str = ""
    kubeconfig: str = ""

    def sps(self, *words: str, namespace: str, service: str = "") -> str:
        """Returns a command of `sps`, quoted for a shell.

        Args:
          words: The command and its arguments.
          namespace: The namespace that it acts on.
          service: The address of the service, for commands that have --pathways-service.
        """
        named = {**dataclasses.asdict(self), "namespace": namespace, "pathways_service": service}
        return self._line(["sps", *words, *place_options(named)])

    def kubectl(self, *words: str, namespace: str = "") -> str:
        """Returns a command of `kubectl`, quoted for a shell.

        It has no option for a GKE cluster: its kubeconfig must have that one.
        """
        given = {"context": self.context, "namespace": namespace}
        options = [f"--{name}={value}" for name, value in given.items() if value]
        return self._line(["kubectl", *words, *options])

    def _line(self, words: Sequence[str]) -> str:
        line = shlex.join(words)
        return f"KUBECONFIG={shlex.quote(self.kubeconfig)} {line}" if self.kubeconfig else line


def place_in_files(context: str, files: Sequence[Path]) -> CommandPlace:
    """Returns the place of a context of these kubeconfig files."""
    found = [file.absolute() for file in files]
    is_usual = found == [(Path.home() / ".kube" / "config").absolute()]
    # (Other files may have a context of the same name, which is another cluster.)
    listed = "" if is_usual else os.pathsep.join(map(str, found))
    return CommandPlace(context=context, kubeconfig=listed)
