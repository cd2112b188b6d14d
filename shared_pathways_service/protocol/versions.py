"""Which version of this project's own gRPC protocols two sides speak."""

from __future__ import annotations

from collections.abc import Iterable

from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.errors import InvalidRequestError, VersionSkew

__all__ = ["is_heard", "negotiate", "spoken"]

#: The initial metadata of a stream that is open, with the version that is spoken on it.
_SPOKEN = "sps-protocol"


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


def spoken(version: int) -> tuple[tuple[str, str], ...]:
    """Returns the initial metadata with which a stream says, before all else, that it is open.

    Args:
      version: That `negotiate` returned.
    """
    return ((_SPOKEN, str(version)),)


def is_heard(metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Returns whether a stream with these initial metadata is open.

    Those of a refusal come before its status does, and are empty: only what the server says is a
    sign.
    """
    return any(key == _SPOKEN for key, _ in metadata)
