"""Runs a resource manager or a worker, depending on the arguments: the entry point of ``server``.

One image is both, as with Pathways on Cloud: ``--node_type=resource_manager`` is the former.
"""

from __future__ import annotations

import os
import sys

__all__ = ["module_of"]

_RESOURCE_MANAGER = "--node_type=resource_manager"


def module_of(arguments: list[str]) -> str:
    """Returns the module of the server that the arguments select."""
    server = "resource_manager" if _RESOURCE_MANAGER in arguments else "worker"
    return f"shared_pathways_service.servers.{server}"


if __name__ == "__main__":
    # Replaces this process, because process 1 of a container receives the stop signals.
    words = sys.argv[1:]
    os.execv(sys.executable, [sys.executable, "-P", "-m", module_of(words), *words])  # noqa: S606
