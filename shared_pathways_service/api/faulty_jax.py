"""Releases of JAX that compute wrong numbers or crash on CPUs, and the flag that prevents it.

From 0.10.2 on XLA computes some sums and products for CPUs with YNNPACK. The first releases with it
return wrong sums (jax issue 39103), or read beyond the dimensions of an array and crash (39257,
40412). `SOUND_FLAG` makes XLA compile without YNNPACK. `conformance.faults` runs the programs of
these reports on each release, with and without the flag, on this machine and through a proxy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from shared_pathways_service.api.jax_releases import release_of

__all__ = ["FAULTY_RELEASES", "SOUND_FLAG", "SOUND_XLA_FLAGS", "Fault", "fault_of", "warning_of"]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of one release of JAX on CPUs.

    Attributes:
      effect: What the release does.
      sound_release: The nearest release without the fault.
    """

    effect: str
    sound_release: str


#: No environment of this project has one of these releases.
FAULTY_RELEASES: Final[Mapping[str, Fault]] = {
    "0.10.2": Fault(
        "computes wrong sums and crashes on some arrays of seven or more dimensions", "0.10.1"
    ),
    "0.11.0": Fault("crashes on some arrays of seven or more dimensions", "0.11.2"),
    "0.11.1": Fault("is reported to crash on some arrays of seven or more dimensions", "0.11.2"),
}
#: Name and value of XLA's flag with which these releases are sound.
SOUND_FLAG: Final = ("xla_cpu_experimental_ynn_fusion_type", "")
#: The same flag as text in ``XLA_FLAGS``.
SOUND_XLA_FLAGS: Final = f"--{'='.join(SOUND_FLAG)}"


def fault_of(version: str) -> Fault | None:
    """Returns the fault of a release of JAX or jaxlib on CPUs; None if none is known."""
    release = release_of(version)
    faults = (fault for faulty, fault in FAULTY_RELEASES.items() if release_of(faulty) == release)
    return next(faults, None)


def warning_of(version: str, xla_flags: str) -> str:
    """Returns a warning for the user of a program whose own release of jaxlib is faulty.

    Args:
      version: The release.
      xla_flags: The value of ``XLA_FLAGS``.

    Returns:
      The warning; empty if the release is sound, or is made so by the flags.
    """
    fault = fault_of(version)
    if fault is None or SOUND_XLA_FLAGS in xla_flags.split():
        return ""
    return (
        f"jaxlib {version} {fault.effect}, on the CPU of this machine. Programs on slices do not "
        f"run on it and are not affected. Install jax=={fault.sound_release} or set "
        f"XLA_FLAGS={SOUND_XLA_FLAGS} before JAX is imported"
    )
