"""Getting JAX's client of a proxy, with this package's errors in place of the library's."""

from __future__ import annotations

import time
from typing import Any

from shared_pathways_service.errors import (
    CredentialsMismatch,
    ProxyFailed,
    SharedPathwaysError,
    TunnelError,
)
from shared_pathways_service.jaxside import plugin, sockets
from shared_pathways_service.jaxside.target import ProxyTarget

__all__ = ["make_client", "peer_of", "unreachable"]

#: Seconds that an attempt has, however late it is.
_LEAST_S = 0.1


#: What gRPC says where it has no ALTS, which exists only on machines of Google Cloud.
_NO_CREDENTIALS = ("Invalid credentials", "ChannelCredentials argument is null")


def peer_of(target: ProxyTarget, deadline: float) -> sockets.Peer:
    """Returns the name under which sockets connected to the proxy know it.

    Raises:
      TunnelError: Nothing accepts a connection there.
    """
    try:
        return sockets.peer_at(target.address, max(_LEAST_S, deadline - time.monotonic()))
    except OSError as error:
        raise unreachable(target, error.strerror or str(error) or "no answer") from error


def make_client(target: ProxyTarget, deadline: float) -> Any:
    """Returns JAX's client of the proxy.

    Args:
      target: The proxy.
      deadline: On the monotonic clock, in seconds.

    Raises:
      SharedPathwaysError: As `attach` describes.
    """
    import jax  # noqa: PLC0415 - the package is imported without it

    def doubt() -> None:
        # The client goes on trying whatever it is told, and does not tell what that was.
        from shared_pathways_service.jaxside.refusal import reason_of  # noqa: PLC0415 - gRPC

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
        raise _translated(target, str(error)) from error


def unreachable(target: ProxyTarget, cause: str) -> TunnelError:
    """Returns the error for a proxy that does not answer."""
    return TunnelError(
        f"the proxy at {target.address} cannot be reached: {cause}",
        pod=target.address,
        cause=cause,
        hint="it may have ended, or the way to it is gone; connect again",
    )


def _translated(target: ProxyTarget, text: str) -> SharedPathwaysError:
    # The library's errors have no field for the code: their text begins with its name.
    if text.startswith(("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")):
        return unreachable(target, text)
    if not target.insecure_credentials and any(told in text for told in _NO_CREDENTIALS):
        return CredentialsMismatch(
            f"this machine cannot connect to the proxy at {target.address} without plaintext: "
            f"ALTS, Google's default, exists only on machines of Google Cloud ({text})",
            client=f"{plugin.INSECURE_VARIABLE}=false",
            proxy="use_insecure_credentials:false",
            hint='leave out "use_insecure_credentials:false" of proxy_options=: plaintext stays '
            "inside the cluster, and what leaves it is TLS",
        )
    return ProxyFailed(
        f"the proxy at {target.address} does not take the connection: {text}",
        hint="its log says more",
    )
