"""A process whose JAX runs on a proxy: reads names of checks, runs them, answers with JSON."""

from __future__ import annotations

import json
import os
import sys
import traceback

os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"

import jax
from jax.extend import backend
from jax.extend.backend import ifrt_proxy


def main(address: str) -> None:
    def connect() -> object:
        options = ifrt_proxy.ClientConnectionOptions()
        options.connection_timeout_in_seconds = 60
        return ifrt_proxy.get_client(f"grpc://{address}", options)

    backend.register_backend_factory("proxy", connect, priority=-1)
    jax.config.update("jax_platforms", "proxy")
    jax.config.update("jax_backend_target", f"grpc://{address}")
    from tests.servers.proxy.jax_checks import CHECKS

    for line in sys.stdin:
        try:
            CHECKS[line.strip()]()
            failure = ""
        except BaseException:  # noqa: BLE001 - the parent shows it
            failure = traceback.format_exc()
        sys.stdout.write(json.dumps(failure) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
