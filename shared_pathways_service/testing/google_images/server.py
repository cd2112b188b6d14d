"""``python -m …``: the stand-in for ``pathways/server``, resource manager and worker."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from shared_pathways_service.testing.google_images import flags, front

_MANAGER_FLAG: Final = "--node_type=resource_manager"
_SERVERS: Final = "shared_pathways_service.servers"


def main(argv: Sequence[str]) -> int:
    """Runs the server to its end; returns its exit code."""
    if _MANAGER_FLAG in argv:
        module, taken = f"{_SERVERS}.resource_manager", flags.accepted(argv, flags.MANAGER)
    else:
        module, taken = f"{_SERVERS}.worker", flags.accepted(argv, flags.WORKER)
    front.log_arguments(argv)
    return front.run_server(module, taken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
