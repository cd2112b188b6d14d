"""The address of this machine at which executors find each other."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence

from shared_pathways_service.servers.devices.status_errors import Code, StatusError

__all__ = ["meeting_host"]


def _own_host(address: str) -> str:
    """Returns this machine's address on the way to another."""
    host, _, port = address.rpartition(":")
    info = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(info[0], info[1]) as probe:
        # (No packet is sent.)
        probe.connect(info[4])
        own: str = probe.getsockname()[0]
    return own


def meeting_host(addresses: Sequence[str], own_host: Callable[[str], str] = _own_host) -> str:
    """Returns an address of this machine for all executors at some addresses.

    Raises:
      StatusError: There is no way to one of them, or they cannot find each other, as only some are
        on this machine's loopback.
    """
    found: dict[str, str] = {}
    for address in addresses:
        try:
            found[address] = own_host(address)
        except (OSError, ValueError) as error:
            raise StatusError(
                Code.UNAVAILABLE, f"the executor at {address} cannot be reached: {error}"
            ) from error
    loopback = [address for address, own in found.items() if ipaddress.ip_address(own).is_loopback]
    others = [address for address in found if address not in loopback]
    if loopback and others:
        raise StatusError(
            Code.FAILED_PRECONDITION,
            f"the executors at {others[0]} and {loopback[0]} cannot reach each other: start those "
            "on the proxy's machine with a --bind_address that is not a loopback address",
        )
    return found[addresses[0]]
