"""Which releases of JAX work together, a client of one with a proxy of another.

The IFRT proxy protocol has had the same versions in all of them (16 to 25). What differs is the
version of IFRT's serialised values, shardings and programs among them: two sides need one in common
that the client can write its programs in. `scripts/compat` has tried the pairs;
docs/compatibility.md has its results.
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

#: From which release of jaxlib on a client speaks which versions of the values: the newest that it
#: says in GetVersion, and the oldest that it can write a program in. (The oldest that it says is
#: less: 0 up to 0.11 and 2 from 0.12 on. But "Unsupported IFRT SerDes version 1 for HloProgram
#: serialization", and so for 2, is what 0.10.2 and later make of a program.)
_CLIENTS: Final[tuple[tuple[Release, tuple[int, int]], ...]] = (
    ((0, 9, 0), (0, 0)),
    ((0, 9, 2), (0, 1)),
    ((0, 10, 0), (0, 2)),
    ((0, 10, 2), (3, 3)),
    ((0, 11, 0), (3, 4)),
    ((0, 11, 2), (3, 6)),
)
#: Versions of the values that proxies of ours read.
OUR_SERDES: Final = (0, 6)
#: XLA's own server has another oldest version from this release on.
_SERVER_LEFT_OUT: Final[tuple[Release, int]] = ((0, 12), 2)
#: jaxlib before this release ends the process at some programs of clients that speak a newer
#: version than this.
_READS_ALL: Final[tuple[Release, int]] = ((0, 10), 3)
#: Minor releases that were tried, oldest and newest.
_OLDEST: Final[Release] = (0, 9)
_NEWEST: Final[Release] = (0, 12)
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)+")


def client_serdes(version: str) -> tuple[int, int] | None:
    """Returns in which versions of IFRT's serialised values a client can write its programs.

    Args:
      version: Of jax or jaxlib, e.g. ``0.10.2``.

    Returns:
      The oldest and the newest; None for releases before 0.9, and what is no release. One that is
      newer than all that were tried counts as the newest of these.
    """
    release = release_of(version)
    ranges = [serdes for first, serdes in _CLIENTS if release >= first]
    return ranges[-1] if ranges else None


def newest_served(version: str) -> int:
    """Returns the newest version of the values that a proxy of ours agrees to.

    If that is less than the newest one that it reads, clients that speak a newer one are refused.

    Args:
      version: Of its jaxlib.
    """
    first, newest = _READS_ALL
    return newest if release_of(version) < first else OUR_SERDES[1]


def service_serdes(version: str, *, ours: bool) -> tuple[int, int] | None:
    """Returns which versions of the values a proxy reads; None for releases before 0.9.

    Args:
      version: Of its jaxlib.
      ours: Whether it is this project's, or XLA's own server.
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
      client: Of jax or jaxlib; empty when it is not known, and so for the service.
      service: The same.
      where: Whose the service's is, for messages, e.g. an image.
      ours: Whether its proxies are this project's: they read what older clients say as well, which
        those of XLA's own server leave out as its clients do.

    Returns:
      A warning about a release that was not tried; empty where there is nothing to say.

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
    """Returns the numbers of a version, e.g. ``0.12.0.1``; empty if it is none."""
    found = _NUMBERS.match(version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
