"""A process whose JAX runs on a proxy: reads names of checks, runs them, and answers with JSON."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
from jax.extend import backend
from jax.extend.backend import ifrt_proxy

from shared_pathways_service.jax_client.plugin import local, workarounds


def main(address: str) -> None:
    attach(address)
    from harness.jax_checks.all_checks import COMPARED
    from harness.jax_checks.basics import CHECKS

    def run(name: str) -> None:
        if name in COMPARED:
            compare(name)
        else:
            CHECKS[name]()

    answer(run)


def attach(address: str) -> None:
    """Puts JAX on the proxy at an address, with the CPU's devices as a second platform."""

    def connect() -> object:
        options = ifrt_proxy.ClientConnectionOptions()
        options.connection_timeout_in_seconds = 60
        client = ifrt_proxy.get_client(f"grpc://{address}", options)
        local.claim(client)
        return client

    workarounds.install()
    backend.register_backend_factory("proxy", connect, priority=-1)
    jax.config.update("jax_platforms", "proxy,cpu")
    jax.config.update("jax_backend_target", f"grpc://{address}")
    # Otherwise the CPU raises errors of programs later than asked for, as the proxy does.
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def answer(run: Callable[[str], None]) -> None:
    """Runs each requested check, and answers with its failure, or an empty text."""
    # JAX itself writes to the standard output now and then.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name = line.strip()
        try:
            run(name)
            failure = ""
        except BaseException:  # noqa: BLE001 - the parent shows it
            failure = traceback.format_exc()
        answers.write(json.dumps(failure) + "\n")
        answers.flush()


def compare(name: str) -> None:
    """Runs a check on the CPU and through the proxy; both must give the same results."""
    from harness.jax_checks.compared import CLIENTS_OWN, COMPARED, CPU_IS_WRONG

    here, there = (_run(COMPARED[name], platform) for platform in ("cpu", "proxy"))
    own = CLIENTS_OWN.get(name, {})
    assert here.keys() == there.keys()
    assert own.keys() <= here.keys()
    wrong = []
    for case, told in here.items():
        if case in CPU_IS_WRONG.get(name, ()):
            if there[case] == told:
                wrong.append(f"{case}: the CPU is not wrong any more: {told}")
        elif there[case] != own.get(case, told):
            wrong.append(f"{case}:\n  here  {told}\n  there {there[case]}")
        if case in own and told == own[case]:
            wrong.append(f"{case}: is no difference any more: {told}")
    assert not wrong, "\n".join(wrong)


def _run(function: Any, platform: str) -> Any:
    devices = jax.devices(platform)
    with jax.default_device(devices[0]):
        return function(devices)


if __name__ == "__main__":
    main(sys.argv[1])
