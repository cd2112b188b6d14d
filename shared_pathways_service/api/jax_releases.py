"""Compatibility of JAX releases, between a client and a proxy.

All releases have the same versions of the IFRT proxy protocol (16 to 25). They differ in the
versions of IFRT's serialised values (such as shardings and programs): both sides need a common
version in which the client can write its programs. `scripts/compat` tests the pairs;
docs/compatibility.md has the results.
"""

from __future__ import annotations

import re
from typing import Final

from shared_pathways_service.errors import VersionSkew

__all__ = [
    "OUR_SERDES",
    "check_pair",
    "client_serdes",
    "newest_served",
    "release_of",
    "service_serdes",
]

Release = tuple[int, ...]

#: Versions of the values by the client's first release of jaxlib: the newest that it reports in
#: GetVersion, and the oldest in which it can write a program. (The oldest that it reports is lower:
#: 0 up to 0.11 and 2 from 0.12 on. But 0.10.2 and later fail with "Unsupported IFRT SerDes version
#: 1 for HloProgram serialization", and likewise for 2.)
_CLIENTS: Final[tuple[tuple[Release, tuple[int, int]], ...]] = (
    ((0, 9, 0), (0, 0)),
    ((0, 9, 2), (0, 1)),
    ((0, 10, 0), (0, 2)),
    ((0, 10, 2), (3, 3)),
    ((0, 11, 0), (3, 4)),
    ((0, 11, 2), (3, 6)),
)
#: Versions of the values that our proxies read.
OUR_SERDES: Final = (0, 6)
#: From this release on, XLA's own server has this oldest version.
_SERVER_LEFT_OUT: Final[tuple[Release, int]] = ((0, 12), 2)
#: Before this release, jaxlib crashes on some programs of clients with a newer version than this
#: (0.9), or takes the devices of their meshes in another order, so that results are wrong (0.10.0
#: and 0.10.1, which do not know `xla.MeshProto.iota_transform`).
_READS_ALL: Final[tuple[Release, int]] = ((0, 10, 2), 3)
#: Oldest and newest tested minor releases.
_OLDEST: Final[Release] = (0, 9)
_NEWEST: Final[Release] = (0, 12)
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)+")


def client_serdes(version: str) -> tuple[int, int] | None:
    """Returns the oldest and newest versions of IFRT's values in which a client writes programs.

    None for releases before 0.9, and for invalid versions. A release newer than all tested ones
    counts as the newest of them.
    """
    release = release_of(version)
    ranges = [serdes for first, serdes in _CLIENTS if release >= first]
    return ranges[-1] if ranges else None


def newest_served(version: str) -> int:
    """Returns the newest version of the values that our proxies accept.

    If it is lower than the newest version that they read, clients with a newer one are refused.
    """
    first, newest = _READS_ALL
    return newest if release_of(version) < first else OUR_SERDES[1]


def service_serdes(version: str, *, ours: bool) -> tuple[int, int] | None:
    """Returns the versions of the values that a proxy reads; None for releases before 0.9.

    XLA's own server reads fewer than `ours`.
    """
    if ours:
        return OUR_SERDES
    spoken, (release, oldest) = client_serdes(version), _SERVER_LEFT_OUT
    if spoken is None:
        return None
    return (oldest if release_of(version) >= release else 0, spoken[1])


def check_pair(client: str, service: str, where: str, *, ours: bool) -> str:
    """Compares the client's release of JAX with a service's.

    Args:
      client: The client's version of jax or jaxlib; empty: unknown.
      service: The service's version; empty: unknown.
      where: The source of the service's version, for messages, e.g. an image.
      ours: Whether its proxies are this project's, which also read versions of older clients that
        XLA's own server has dropped.

    Returns:
      A warning about an untested release; empty: none.

    Raises:
      VersionSkew: The two have no version of IFRT's values in common.
    """
    here, there = release_of(client), release_of(service)
    if not (here and there):
        return ""
    spoken, read = client_serdes(client), service_serdes(service, ours=ours)
    apart = bool(spoken and read and max(spoken[0], read[0]) > min(spoken[1], read[1]))
    if ours and spoken is not None:
        apart |= newest_served(service) < min(spoken[1], OUR_SERDES[1])
    if apart or here[0] != there[0]:
        raise VersionSkew(
            f"JAX {client} here and JAX {service} in {where} cannot work together"
            + ": the service cannot read the client's programs" * apart,
            client=client,
            service=service,
            hint=f"install jax=={service}, or have the service run JAX {client}; "
            "docs/compatibility.md has the pairs that work",
        )
    if all(_OLDEST <= release[:2] <= _NEWEST for release in (here, there)):
        return ""
    if here[:2] == there[:2]:
        return ""
    return (
        f"JAX is {client} here and {service} in {where}, a pair that was not tried: "
        f"jax=={service} is safer"
    )


def release_of(version: str) -> Release:
    """Returns the numbers of a version, e.g. ``0.12.0.1``; empty if it is invalid."""
    found = _NUMBERS.match(version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
