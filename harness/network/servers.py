"""Servers of this project as processes on the hosts of a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.network.namespaces import Network
from harness.processes import REPOSITORY

__all__ = ["start_server"]


def start_server(
    network: Network, host: str, server: str, *flags: str, log: Path
) -> subprocess.Popen[bytes]:
    """Starts a server on a host, bound to the host's address; its owner ends it.

    Args:
      network: The network.
      host: The host.
      server: ``resource_manager``, ``worker`` or ``proxy``.
      flags: Its other flags.
      log: Gets what it logs, a JSON object a line.
    """
    module = f"shared_pathways_service.servers.{server}"
    with log.open("wb") as file:
        return subprocess.Popen(
            [
                *network.prefix(host),
                *(sys.executable, "-m", module, "--log_format=json"),
                f"--bind_address={network.address(host)}",
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stderr=file,
            cwd=REPOSITORY,
        )
