"""Which gRPC credentials a proxy uses, found out without gRPC, which does not tell.

OpenXLA's IFRT proxy (`common/grpc_credentials_possibly_insecure_wrapper.cc`) speaks plaintext only
if its environment says so, else ALTS; the same holds for its client. A server with ALTS takes the
first bytes of a plaintext client for a broken handshake and hangs up without an answer; a plaintext
server sends its HTTP/2 settings before it has read anything.
"""

from __future__ import annotations

from shared_pathways_service.errors import CredentialsMismatch, ServiceNotReady
from shared_pathways_service.jax_client.plugin.greeting import Greeting, greet, refuses_plaintext
from shared_pathways_service.jax_client.plugin.plugin import INSECURE_VARIABLE

__all__ = ["check_plaintext", "mismatch", "wait_until_silent"]


def check_plaintext(address: str, timeout_s: float) -> None:
    """Returns unless the proxy at an address hangs up on plaintext clients.

    Args:
      address: ``unix:/path`` or ``host:port``.
      timeout_s: Seconds for one answer.

    Raises:
      CredentialsMismatch: It listens, and hangs up on a client that begins with HTTP/2. It is no
        error if it does not listen, or does not answer.
    """
    if refuses_plaintext(address, timeout_s):
        raise mismatch(address, client_is_plaintext=True)


def wait_until_silent(address: str, patience_s: float) -> None:
    """Returns if a proxy that does not speak plaintext listens at an address.

    With ALTS the client speaks first, so that nothing can be asked: a connection that stays open
    shows that somebody listens.

    Args:
      address: ``unix:/path`` or ``host:port``.
      patience_s: Seconds that the connection must stay open.

    Raises:
      CredentialsMismatch: The proxy begins with HTTP/2: it speaks plaintext.
      ServiceNotReady: It cannot be connected to, or hangs up.
    """
    greeting = greet(address, patience_s, speaks=False)
    if greeting is Greeting.HTTP2:
        raise mismatch(address, client_is_plaintext=False)
    if greeting is not Greeting.SILENT:
        raise ServiceNotReady(f"the proxy at {address} does not listen: {greeting.value} came")


def mismatch(address: str, *, client_is_plaintext: bool) -> CredentialsMismatch:
    """Returns the error for a proxy whose credentials are not the client's."""
    plaintext = f"{INSECURE_VARIABLE}=true"
    alts = f"{INSECURE_VARIABLE} is not exactly 'true' (Google's default: ALTS)"
    if client_is_plaintext:
        return CredentialsMismatch(
            f"the proxy at {address} hangs up on plaintext gRPC, which this client speaks "
            f"(client: {plaintext}; proxy: {alts})",
            client=plaintext,
            proxy=alts,
            hint=f"start the proxy with {plaintext}, as connect() does by default; or, on a "
            "machine of Google Cloud, connect with "
            'proxy_options=["use_insecure_credentials:false"]',
        )
    return CredentialsMismatch(
        f"the proxy at {address} speaks plaintext gRPC, and this client ALTS "
        f"(client: {alts}; proxy: {plaintext})",
        client=alts,
        proxy=plaintext,
        hint="leave out use_insecure_credentials:false of proxy_options=, or set "
        f"{plaintext} (exactly so) for the client",
    )
