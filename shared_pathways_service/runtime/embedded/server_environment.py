"""Derives the environment of a server that a user's program starts."""

from __future__ import annotations

from collections.abc import Mapping

from shared_pathways_service.runtime.location import with_package_path

__all__ = ["server_environment"]

#: Variables that are meant for the program that started the service, not for servers.
_NOT_FOR_SERVERS = ("JAX_", "IFRT_PROXY_", "MEGASCALE_", "TPU_", "PATHWAYS_", "SPS_JOB_")
_NOT_FOR_SERVERS_EXACTLY = frozenset(
    {"XLA_FLAGS", "LIBTPU_INIT_ARGS", "PYTHONSTARTUP", "PYTHONINSPECT", "NOTIFY_SOCKET"}
    | {"SPS_TOKEN_FILE", "SPS_BIND_ADDRESS", "SPS_HOST", "SPS_NODE_POOL"}
)


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a server, without variables meant for the user's program."""
    variables = {
        name: value
        for name, value in environ.items()
        if not name.startswith(_NOT_FOR_SERVERS) and name not in _NOT_FOR_SERVERS_EXACTLY
    }
    return {**with_package_path(variables), "PYTHONUNBUFFERED": "1"}
