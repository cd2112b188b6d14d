"""A process whose JAX runs on a proxy and serves callbacks: `child` for checks of callbacks."""

from __future__ import annotations

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"

import jax

from harness.jax_checks.child import answer, compare
from shared_pathways_service.jax_client.plugin import plugin


def main(address: str) -> None:
    attach(address)
    from harness.jax_checks.all_callback_checks import CHECKS
    from harness.jax_checks.compared import COMPARED

    def run(name: str) -> None:
        if name in COMPARED:
            compare(name)
        else:
            CHECKS[name]()

    answer(run)


def attach(address: str) -> None:
    """Puts JAX on the proxy at an address like the plug-in, with the CPU as a second platform."""
    jax.config.update("jax_platforms", "proxy,cpu")
    jax.config.update("jax_backend_target", f"grpc://{address}")
    plugin.initialize()
    # With it the CPU, which reads it once, raises errors of programs earlier than the proxy. Calls
    # of programs on the proxy read it each time, and are to return before their callbacks do.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.devices("cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", True)


if __name__ == "__main__":
    main(sys.argv[1])
