"""Negotiates the version of this project's own gRPC protocols."""

from __future__ import annotations

from collections.abc import Iterable

from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.errors import InvalidRequestError, VersionSkew

__all__ = ["is_open", "negotiate", "version_metadata"]

#: The initial metadata of an open stream, with its version.
_VERSION_KEY = "sps-protocol"


def negotiate(low: int, high: int) -> int:
    """Returns the highest version that this side has in common with another one.

    Raises:
      InvalidRequestError: The other side's range is invalid.
      VersionSkew: No version is in both ranges.
    """
    if not 1 <= low <= high:
        raise InvalidRequestError("versions", f"{low} to {high}", "a range from 1 up")
    version = min(high, PROTOCOL_MAX)
    if version >= max(low, PROTOCOL_MIN):
        return version
    client, service = f"{low} to {high}", f"{PROTOCOL_MIN} to {PROTOCOL_MAX}"
    raise VersionSkew(
        f"no common protocol version: the client speaks {client}, the service {service}",
        client=client,
        service=service,
        hint="use the same release of shared-pathways-service on both sides",
    )


def version_metadata(version: int) -> tuple[tuple[str, str], ...]:
    """Returns the initial metadata that mark a stream of a negotiated version as open."""
    return ((_VERSION_KEY, str(version)),)


def is_open(metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Returns whether a stream with these initial metadata is open.

    A refused stream also has initial metadata, which are empty and come before its status.
    """
    return any(key == _VERSION_KEY for key, _ in metadata)
