"""Detects the gRPC credentials of a proxy, without gRPC, which does not report them.

OpenXLA's IFRT proxy (`common/grpc_credentials_possibly_insecure_wrapper.cc`) uses plaintext only if
its environment says so, otherwise ALTS; so does its client. A server with ALTS takes the first
bytes of a plaintext client for a broken handshake and hangs up without an answer; a plaintext
server sends its HTTP/2 settings before it has read anything.
"""

from __future__ import annotations

from shared_pathways_service.errors import CredentialsMismatch, ServiceNotReady
from shared_pathways_service.jax_client.plugin.greeting import Greeting, greet, refuses_plaintext
from shared_pathways_service.jax_client.plugin.plugin import INSECURE_VARIABLE

__all__ = ["check_plaintext", "mismatch", "wait_until_silent"]


def check_plaintext(address: str, timeout_s: float) -> None:
    """Returns unless the proxy at ``unix:/path`` or ``host:port`` hangs up on plaintext clients.

    Raises:
      CredentialsMismatch: It listens, and hangs up on a client that starts with HTTP/2. It is not
        an error if it does not listen, or does not answer.
    """
    if refuses_plaintext(address, timeout_s):
        raise mismatch(address, client_is_plaintext=True)


def wait_until_silent(address: str, patience_s: float) -> None:
    """Returns if a proxy that does not use plaintext listens at ``unix:/path`` or ``host:port``.

    With ALTS the client sends first, so no request is possible: a connection that stays open shows
    that the proxy listens.

    Raises:
      CredentialsMismatch: The proxy starts with HTTP/2: it uses plaintext.
      ServiceNotReady: The proxy refuses the connection, or hangs up.
    """
    greeting = greet(address, patience_s, speaks=False)
    if greeting is Greeting.HTTP2:
        raise mismatch(address, client_is_plaintext=False)
    if greeting is not Greeting.SILENT:
        raise ServiceNotReady(f"the proxy at {address} does not listen: it sent {greeting.value}")


def mismatch(address: str, *, client_is_plaintext: bool) -> CredentialsMismatch:
    """Returns the error for a proxy whose credentials differ from the client's."""
    plaintext = f"{INSECURE_VARIABLE}=true"
    alts = f"{INSECURE_VARIABLE} is not exactly 'true' (Google's default: ALTS)"
    if client_is_plaintext:
        return CredentialsMismatch(
            f"the proxy at {address} hangs up on plaintext gRPC, which this client uses "
            f"(client: {plaintext}; proxy: {alts})",
            client=plaintext,
            proxy=alts,
            hint=f"start the proxy with {plaintext}, as connect() does by default; or, on a "
            "machine of Google Cloud, connect with "
            'proxy_options=["use_insecure_credentials:false"]',
        )
    return CredentialsMismatch(
        f"the proxy at {address} uses plaintext gRPC, and this client ALTS "
        f"(client: {alts}; proxy: {plaintext})",
        client=alts,
        proxy=plaintext,
        hint="remove use_insecure_credentials:false from proxy_options=, or set "
        f"{plaintext} (exactly so) for the client",
    )
