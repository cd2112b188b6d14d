"""``python -m …``: the stand-in for ``pathways/server``, resource manager and worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from shared_pathways_service.testing.google_images import buckets, flags, front, peers

_MANAGER_FLAG: Final = "--node_type=resource_manager"
_MANAGER: Final = "shared_pathways_service.testing.google_images.our_manager"
_WORKER: Final = "shared_pathways_service.servers.worker"


def main(argv: Sequence[str]) -> int:
    """Runs the server to its end; returns its exit code."""
    if _MANAGER_FLAG in argv:
        taken = flags.accepted(argv, flags.MANAGER)
        front.log_arguments(argv)
        if buckets.fails(argv):
            return 1
        return front.run_server(_MANAGER, taken)
    taken = flags.accepted(argv, flags.WORKER)
    front.log_arguments(argv)
    if buckets.fails(argv):
        return 1
    with peers.token_file() as (path, descriptor):
        taken += [f"--token_file={path}"]
        if kind := peers.instance_type(os.environ):
            taken += [f"--instance_type={kind}"]
        return front.run_server(_WORKER, taken, passed=[descriptor])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
