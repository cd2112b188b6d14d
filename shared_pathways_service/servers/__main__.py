"""What the image ``server`` runs: by its arguments a resource manager, or a worker.

One image is both, as that of Pathways on Cloud is: ``--node_type=resource_manager`` is the former.
"""

from __future__ import annotations

import os
import sys

__all__ = ["module_of"]

_RESOURCE_MANAGER = "--node_type=resource_manager"


def module_of(arguments: list[str]) -> str:
    """Returns which server the arguments are for."""
    server = "resource_manager" if _RESOURCE_MANAGER in arguments else "worker"
    return f"shared_pathways_service.servers.{server}"


if __name__ == "__main__":
    # In its place: process 1 of a container is who is told to stop.
    words = sys.argv[1:]
    os.execv(sys.executable, [sys.executable, "-P", "-m", module_of(words), *words])  # noqa: S606
