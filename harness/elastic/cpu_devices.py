"""How a process of these tests gets its devices."""

from __future__ import annotations

import os

import jax

__all__ = ["use_cpu_devices"]


def use_cpu_devices(count: int) -> None:
    """Gives this process a number of CPU devices; JAX must not have been used yet."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    jax.config.update("jax_platforms", "cpu")
    # XLA's CPU client has a thread a device. A program that waits on one of them for the results of
    # another one, which needs them all at once to reduce over devices, can stop both for good.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
