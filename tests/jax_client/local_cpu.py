"""Programs on a proxy that also use this machine's CPU."""

from __future__ import annotations

from pathlib import Path

from shared_pathways_service.jax_client import ProxyTarget, standalone
from tests.jax_client.conftest import Proxy, run_program

#: Both ways lead to the same: attached, and by the environment alone.
ATTACHED = "attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))\n"

MADE = """
from jaxlib import xla_client
made = []
make = xla_client.make_cpu_client

def count(*args, **kwargs):
    made.append(make(*args, **kwargs))
    return made[-1]

xla_client.make_cpu_client = count
"""


def _by_environment(proxy: Proxy, program: str, directory: Path, python: str) -> str:
    target = ProxyTarget(address=proxy.address, token=proxy.token, token_file=proxy.token_file)
    environment = {**target.environment, "PYTHONPATH": str(standalone.place(directory))}
    return run_program(program, env=environment, cwd=directory, python=python).stdout
