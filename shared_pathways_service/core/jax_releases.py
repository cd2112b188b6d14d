"""Which releases of JAX work together, a client of one with a proxy of another.

The IFRT proxy protocol has had the same versions in all of them (16 to 25). What differs
is the version of IFRT's serialised values, shardings and programs among them: two sides need one in
common. Programs are StableHLO, which says itself which older releases it is written for; a client
whose programs an older proxy cannot read has no version of the values in common with it either.
`scripts/compat` has tried the pairs; docs/compatibility.md has its results.
"""

from __future__ import annotations

import re
from typing import Final

from shared_pathways_service.errors import VersionSkew

__all__ = ["check_pair", "serdes_of"]

Release = tuple[int, ...]

#: From which release of jaxlib on a client says which range of versions of the values it speaks, as
#: captured from the clients (GetVersion).
_SERDES: Final[tuple[tuple[Release, tuple[int, int]], ...]] = (
    ((0, 9, 0), (0, 0)),
    ((0, 9, 2), (0, 1)),
    ((0, 10, 0), (0, 2)),
    ((0, 10, 2), (0, 3)),
    ((0, 11, 0), (0, 4)),
    ((0, 11, 2), (0, 6)),
    ((0, 12, 0), (2, 6)),
)
#: Minor releases that were tried, oldest and newest.
_OLDEST: Final[Release] = (0, 9)
_NEWEST: Final[Release] = (0, 12)
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)+")


def serdes_of(version: str) -> tuple[int, int] | None:
    """Returns which versions of IFRT's serialised values a release of jaxlib speaks.

    Args:
      version: Of jax or jaxlib, e.g. ``0.10.2``.

    Returns:
      The oldest and the newest; None for releases before 0.9, and what is no release. One that is
      newer than all that were tried counts as the newest of these.
    """
    release = _release(version)
    ranges = [serdes for first, serdes in _SERDES if release >= first]
    return ranges[-1] if ranges else None


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
    here, there = _release(client), _release(service)
    if not (here and there):
        return ""
    spoken, understood = serdes_of(client), serdes_of(service)
    if ours and understood is not None:
        understood = (0, understood[1])
    apart = bool(
        spoken is not None
        and understood is not None
        and max(spoken[0], understood[0]) > min(spoken[1], understood[1])
    )
    if apart or here[0] != there[0]:
        raise VersionSkew(
            f"JAX {client} here and JAX {service} in {where} cannot work together"
            + (f": IFRT's values are of versions {_said(spoken)} and {_said(understood)}" * apart),
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


def _said(serdes: tuple[int, int] | None) -> str:
    return "unknown" if serdes is None else f"{serdes[0]} to {serdes[1]}"


def _release(version: str) -> Release:
    """Returns the numbers of a version; empty if it is none."""
    found = _NUMBERS.match(version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
