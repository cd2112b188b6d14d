"""Derives the environment of a server that a user's program starts."""

from __future__ import annotations

from collections.abc import Mapping

from shared_pathways_service.constants import CPU, TPU
from shared_pathways_service.runtime.location import with_package_path

__all__ = ["server_environment"]

#: Variables that are meant for the program that started the service, not for servers.
_NOT_FOR_SERVERS = ("JAX_", "IFRT_PROXY_", "MEGASCALE_", "PATHWAYS_", "SPS_JOB_")
_NOT_FOR_SERVERS_EXACTLY = frozenset(
    {"XLA_FLAGS", "PYTHONSTARTUP", "PYTHONINSPECT", "NOTIFY_SOCKET"}
    | {"SPS_TOKEN_FILE", "SPS_BIND_ADDRESS", "SPS_HOST", "SPS_NODE_POOL"}
)


def server_environment(environ: Mapping[str, str], platform: str = CPU) -> dict[str, str]:
    """Returns the environment of a server, without variables meant for the user's program.

    Args:
      environ: The environment of the process that starts the server.
      platform: With ``tpu`` the variables by which libtpu knows its chips and slice are kept.
    """
    variables = {
        name: value
        for name, value in environ.items()
        if (platform == TPU and _is_of_libtpu(name))
        or not (
            name.startswith(_NOT_FOR_SERVERS)
            or name in _NOT_FOR_SERVERS_EXACTLY
            or _is_of_libtpu(name)
        )
    }
    return {**with_package_path(variables), "PYTHONUNBUFFERED": "1"}


def _is_of_libtpu(name: str) -> bool:
    return name.startswith("TPU_") or name == "LIBTPU_INIT_ARGS"
