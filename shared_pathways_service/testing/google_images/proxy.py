"""``python -m …``: the stand-in for ``pathways/proxy_server``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from shared_pathways_service.constants import PROXY_PORT
from shared_pathways_service.testing.google_images import (
    PROXY_MODULE,
    buckets,
    flags,
    front,
    peers,
    wishes,
)
from shared_pathways_service.testing.google_images.alts_handshake import serving_alts
from shared_pathways_service.testing.google_images.held_connections import relaying

_INSECURE: Final = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
_ENGINE: Final = "shared_pathways_service.testing.google_images.our_proxy"
_PORT: Final = "--server_port="


def main(argv: Sequence[str]) -> int:
    """Runs the proxy to its end; returns its exit code."""
    front.become_nobody(PROXY_MODULE, argv)
    wished, given = wishes.split(argv)
    taken = flags.accepted(given, flags.PROXY, takes_xla=True)
    front.log_arguments(given)
    if buckets.fails(given):
        return 1
    port = next((w.removeprefix(_PORT) for w in taken if w.startswith(_PORT)), PROXY_PORT)
    host = os.environ.pop("SPS_BIND_ADDRESS", "127.0.0.1")
    # The server that computes is at an address that clients do not know.
    taken = [word for word in taken if not word.startswith(_PORT)]
    taken += ["--server_port=0", "--max_sessions=1", *wished.flags]
    # Google's resource manager neither refuses nor queues a tenant: it places it at some time.
    taken += ["--queue_timeout_s=inf"]
    with contextlib.ExitStack() as stack:

        def begin_serving(server_port: int) -> None:
            if os.environ.get(_INSECURE) == "true":
                stack.enter_context(relaying(host, int(port), server_port))
            else:
                stack.enter_context(serving_alts(host, int(port)))

        path, descriptor = stack.enter_context(peers.token_file(wished.placement_s))
        taken += [f"--resource_manager_token_file={path}"]
        return front.run_server(_ENGINE, taken, passed=[descriptor], on_serving=begin_serving)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
