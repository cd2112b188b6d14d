"""Describes how to connect to a proxy."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.jax_client.plugin import plugin
from shared_pathways_service.jax_client.plugin import strict as strict_mode

__all__ = ["UPLOADS_VARIABLE", "ProxyTarget", "is_strict"]

#: A variable of JAX's client: the number of small buffers that it uploads at a time, by default 64.
UPLOADS_VARIABLE: Final = "IFRT_PROXY_GRPC_MAX_ONGOING_HOST_BUFFER_STORES"
#: One, in a form that no user writes: a child process may inherit it for another proxy.
_OWN_LIMIT: Final = "01"
#: Variables of gRPC, which knows them in lower case only: proxies, and hosts that need none. This
#: last one replaces `no_proxy`.
_PROXIES_OF_GRPC: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_DIRECT: Final = "no_grpc_proxy"


def is_strict(asked: bool | None) -> bool:
    """Whether programs are refused that Google's proxies refuse; None: as in SPS_STRICT."""
    if asked is not None:
        return asked
    try:
        return strict_mode.is_wanted()
    except ValueError as error:
        value = os.environ.get(strict_mode.VARIABLE)
        raise InvalidRequestError(strict_mode.VARIABLE, value, "1 or 0") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyTarget:
    """The proxy that JAX is to use.

    Attributes:
      address: ``unix:/path`` or ``127.0.0.1:port``, on this machine.
      token: The token for the proxy; None: none.
      token_file: The token's file for child processes; None: they get none.
      local_devices: Whether the local CPU is usable together with the proxy (`jax.devices("cpu")`).
      insecure_credentials: Whether the proxy uses plaintext, as ours do; otherwise JAX's client
        uses ALTS.
      one_client: Whether the proxy serves one client at a time, like Google's. Then only JAX's own
        client may open a session, as another one would end it.
      transfer_dir: A directory in memory that this machine shares with the proxy for large buffers;
        None: none.
      strict: Whether programs are refused that Google's proxies refuse.
      is_remote: Whether the proxy is behind a tunnel, where each answer takes a round trip.
    """

    address: str
    token: str | None = dataclasses.field(default=None, repr=False)
    token_file: Path | None = None
    local_devices: bool = True
    insecure_credentials: bool = True
    one_client: bool = False
    transfer_dir: Path | None = None
    strict: bool = False
    is_remote: bool = False

    def __post_init__(self) -> None:
        """Checks the address."""
        host, colon, port = self.address.rpartition(":")
        fits = host == "unix" and port.startswith("/")
        fits = fits or (bool(host) and host != "unix" and port.isascii() and port.isdigit())
        if not colon or not fits:
            raise InvalidRequestError("address", self.address, "unix:/path or host:port")

    @property
    def url(self) -> str:
        """The address in JAX's form."""
        return f"grpc://{self.address}"

    @property
    def platforms(self) -> str:
        """JAX's platforms, the default one first."""
        return "proxy,cpu" if self.local_devices else "proxy"

    @property
    def environment(self) -> Mapping[str, str | None]:
        """Variables that make JAX of another process use the proxy; None: unset the variable.

        The other process reads the token itself (see `plugin`). A Python that does not load the
        plug-in fails at once where a token is needed; without one, JAX's own client connects as
        well.
        """
        transport = plugin.TRANSPORT if self.token_file else "grpc"
        return {
            "JAX_PLATFORMS": self.platforms,
            "JAX_BACKEND_TARGET": f"{transport}://{self.address}",
            # Would bypass the proxy.
            "JAX_PLATFORM_NAME": None,
            # The plug-in of a child process takes an unset variable for `true`.
            plugin.INSECURE_VARIABLE: "true" if self.insecure_credentials else "false",
            plugin.TOKEN_VARIABLE: str(self.token_file) if self.token_file else None,
            plugin.TRANSFER_VARIABLE: str(self.transfer_dir) if self.transfer_dir else None,
            strict_mode.VARIABLE: "1" if self.strict else None,
            # Each client sets its own; another one's would be wrong.
            **dict.fromkeys(plugin.TRANSFER_SETTINGS),
        }

    def limits(self, inherited: Mapping[str, str]) -> Mapping[str, str | None]:
        """Returns what to change of JAX's and gRPC's limits in an environment; the user's own stay.

        Uploads that fail at the same time, as when the proxy is killed, can end the process. To a
        proxy on this machine they go one at a time, which costs nothing. Through a tunnel each
        would wait for the answer to the one before. JAX's client reads this when the first client
        of a process is created.
        """
        direct = self._direct(inherited)
        if inherited.get(UPLOADS_VARIABLE, _OWN_LIMIT) != _OWN_LIMIT:
            return direct
        return {UPLOADS_VARIABLE: None if self.is_remote else _OWN_LIMIT, **direct}

    def _direct(self, inherited: Mapping[str, str]) -> Mapping[str, str]:
        """Returns what keeps gRPC from connecting to this machine by the network's proxy.

        By itself it does, except by Unix sockets (`doc/core/default_http_proxy_mapper.md` of gRPC).
        """
        host = self.address.rpartition(":")[0]
        if host == "unix" or not any(map(inherited.get, _PROXIES_OF_GRPC)):
            return {}
        known = inherited.get(_DIRECT) or inherited.get("no_proxy") or ""
        if host in known.split(","):
            return {}
        return {_DIRECT: f"{known},{host}".lstrip(",")}
