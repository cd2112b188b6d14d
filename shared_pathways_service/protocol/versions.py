"""Which version of this project's own gRPC protocols two sides speak."""

from __future__ import annotations

from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.errors import InvalidRequestError, VersionSkew

__all__ = ["negotiate"]


def negotiate(low: int, high: int) -> int:
    """Returns the highest version that both sides speak.

    Args:
      low: The lowest that the other side speaks, from 1.
      high: The highest that it speaks.

    Raises:
      InvalidRequestError: The other side's range is none.
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
