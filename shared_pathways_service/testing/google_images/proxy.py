"""``python -m …``: the stand-in for ``pathways/proxy_server``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from shared_pathways_service.constants import PROXY_PORT
from shared_pathways_service.testing.google_images import PROXY_MODULE, flags, front, peers
from shared_pathways_service.testing.google_images.alts_handshake import serving_alts

_INSECURE: Final = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
_ENGINE: Final = "shared_pathways_service.testing.google_images.our_proxy"
_PORT: Final = "--server_port="


def main(argv: Sequence[str]) -> int:
    """Runs the proxy to its end; returns its exit code."""
    front.become_nobody(PROXY_MODULE, argv)
    taken = flags.accepted(argv, flags.PROXY, takes_xla=True)
    # Google's resource manager neither refuses nor queues a tenant: it places it at some time.
    taken += ["--max_sessions=1", "--queue_timeout_s=inf"]
    front.log_arguments(argv)
    with contextlib.ExitStack() as stack:
        if os.environ.get(_INSECURE) != "true":
            port = next((w.removeprefix(_PORT) for w in taken if w.startswith(_PORT)), PROXY_PORT)
            host = os.environ.pop("SPS_BIND_ADDRESS", "127.0.0.1")
            stack.enter_context(serving_alts(host, int(port)))
            # The server that computes nevertheless is at an address that clients do not know.
            taken = [word for word in taken if not word.startswith(_PORT)]
            taken += ["--server_port=0"]
        path, descriptor = stack.enter_context(peers.token_file())
        taken += [f"--resource_manager_token_file={path}"]
        return front.run_server(_ENGINE, taken, passed=[descriptor])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
