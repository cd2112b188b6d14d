"""Creates JAX's client of a proxy, with this package's errors instead of the library's."""

from __future__ import annotations

import time
from typing import Any

from shared_pathways_service.jax_client.connection_errors import from_jax, unreachable
from shared_pathways_service.jax_client.plugin import plugin, sockets
from shared_pathways_service.jax_client.target import ProxyTarget

__all__ = ["make_client", "peer_of"]

#: Minimum seconds of an attempt, however late it is.
_LEAST_S = 0.1


def peer_of(target: ProxyTarget, deadline: float) -> sockets.Peer:
    """Returns the form in which connected sockets name the proxy.

    Raises:
      TunnelError: The proxy does not accept connections.
    """
    try:
        return sockets.peer_at(target.address, max(_LEAST_S, deadline - time.monotonic()))
    except OSError as error:
        raise unreachable(target, error.strerror or str(error) or "no answer") from error


def make_client(target: ProxyTarget, deadline: float) -> Any:
    """Returns JAX's client of the proxy; raises the errors of `attach`.

    Raises:
      SharedPathwaysError: The errors of `attach`.
    """
    import jax  # noqa: PLC0415 - the package is imported without it

    def doubt() -> None:
        # The client retries on any error, and does not report it.
        from shared_pathways_service.jax_client.refusal import reason_of  # noqa: PLC0415 - gRPC

        if reason := reason_of(target, max(_LEAST_S, deadline - time.monotonic())):
            raise reason

    remaining = max(_LEAST_S, deadline - time.monotonic())
    try:
        return plugin.connect(
            target.url,
            token=target.token,
            timeout=remaining,
            transfer_dir=target.transfer_dir,
            doubt=doubt,
        )
    except TimeoutError as error:
        raise unreachable(target, "it does not answer in time") from error
    except jax.errors.JaxRuntimeError as error:
        raise from_jax(target, str(error)) from error
