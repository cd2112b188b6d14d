"""Makes errors of connecting to a proxy that cannot be reached, or refuses JAX's client."""

from __future__ import annotations

from shared_pathways_service.errors import (
    CapacityError,
    CredentialsMismatch,
    ProxyFailed,
    SharedPathwaysError,
    TunnelError,
)
from shared_pathways_service.jax_client.plugin import held_session, plugin
from shared_pathways_service.jax_client.target import ProxyTarget

__all__ = ["from_jax", "session_held", "unreachable"]

#: gRPC's messages on a machine without ALTS, which exists only in Google Cloud.
_NO_CREDENTIALS = ("Invalid credentials", "ChannelCredentials argument is null")


def unreachable(target: ProxyTarget, cause: str) -> TunnelError:
    """Returns the error for a proxy that does not answer."""
    return TunnelError(
        f"the proxy at {target.address} cannot be reached: {cause}",
        pod=target.address,
        cause=cause,
        hint="it may have ended, or the connection to it broke; connect again",
    )


def session_held(error: held_session.SessionHeldError) -> CapacityError:
    """Returns the error for a proxy whose only session another client has."""
    return CapacityError(str(error), hint=held_session.HINT)


def from_jax(target: ProxyTarget, text: str) -> SharedPathwaysError:
    """Translates the error of JAX's client that could not connect to a proxy."""
    # The library's errors have no field for the code: their text begins with its name.
    if text.startswith(("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")):
        return unreachable(target, text)
    if not target.insecure_credentials and any(message in text for message in _NO_CREDENTIALS):
        return CredentialsMismatch(
            f"this machine cannot connect to the proxy at {target.address} without plaintext: "
            f"ALTS, Google's default, exists only on machines of Google Cloud ({text})",
            client=f"{plugin.INSECURE_VARIABLE}=false",
            proxy="use_insecure_credentials:false",
            hint='remove "use_insecure_credentials:false" from proxy_options=: plaintext stays '
            "inside the cluster, and connections outside use TLS",
        )
    return ProxyFailed(
        f"the proxy at {target.address} refuses the connection: {text}",
        hint="see its log",
    )
