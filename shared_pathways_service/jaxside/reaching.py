"""Getting JAX's client of a proxy, with this package's errors in place of the library's."""

from __future__ import annotations

import time
from typing import Any

from shared_pathways_service.errors import (
    AccessDenied,
    ProxyFailed,
    SharedPathwaysError,
    TunnelError,
    VersionSkew,
)
from shared_pathways_service.jaxside import plugin, sockets
from shared_pathways_service.jaxside.target import ProxyTarget

__all__ = ["make_client", "peer_of"]


def peer_of(target: ProxyTarget, deadline: float) -> sockets.Peer:
    """Returns the name under which sockets connected to the proxy know it.

    Raises:
      TunnelError: Nothing accepts a connection there.
    """
    try:
        return sockets.peer_at(target.address, max(0.1, deadline - time.monotonic()))
    except OSError as error:
        raise _unreachable(target, error.strerror or str(error) or "no answer") from error


def make_client(target: ProxyTarget, deadline: float) -> Any:
    """Returns JAX's client of the proxy.

    Args:
      target: The proxy.
      deadline: On the monotonic clock, in seconds.

    Raises:
      SharedPathwaysError: As `attach` describes.
    """
    import jax  # noqa: PLC0415 - the package is imported without it

    remaining = max(0.1, deadline - time.monotonic())
    try:
        return plugin.connect(target.url, token=target.token, timeout=remaining)
    except TimeoutError as error:
        raise _unreachable(target, "it does not answer in time") from error
    except jax.errors.JaxRuntimeError as error:
        raise _translated(target, str(error)) from error


def _unreachable(target: ProxyTarget, cause: str) -> TunnelError:
    return TunnelError(
        f"the proxy at {target.address} cannot be reached: {cause}",
        pod=target.address,
        cause=cause,
        hint="it may have ended, or the way to it is gone; connect again",
    )


def _translated(target: ProxyTarget, text: str) -> SharedPathwaysError:
    # The library's errors have no field for the code: their text begins with its name.
    code, _, rest = text.partition(":")
    said = rest.strip() or text
    if code in {"PERMISSION_DENIED", "UNAUTHENTICATED"}:
        return AccessDenied(
            f"the proxy at {target.address} refuses the token: {said}",
            verb="connect",
            resource="proxy",
            hint="a proxy serves only the session that it was made for",
        )
    if code == "FAILED_PRECONDITION":
        return VersionSkew(f"the proxy at {target.address} refuses this client: {said}")
    if code in {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"}:
        return _unreachable(target, said)
    return ProxyFailed(
        f"the proxy at {target.address} does not take the connection: {text}",
        hint="its log says more",
    )
