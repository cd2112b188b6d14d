"""The known flags of Google's images."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Final

__all__ = ["MANAGER", "PROXY", "WORKER", "accepted"]

#: Names of flags that this project's servers share, and of flags that only Google's have.
_SHARED_BY_ALL: Final = {"server_port", "gcs_scratch_location"}
_OF_ALL: Final = {"enforce_kernel_ipv6_support", "temporary_flags_for_debugging"}

MANAGER: Final = (_SHARED_BY_ALL | {"node_type", "instance_count", "instance_type"}, _OF_ALL)
WORKER: Final = (
    _SHARED_BY_ALL | {"resource_manager_address"},
    _OF_ALL | {"tpu_pinned_host_allocation_recycle", "tpu_premapped_buffer_size"},
)
PROXY: Final = (
    _SHARED_BY_ALL
    | {"resource_manager_address", "virtual_slices", "num_elastic_slices", "sidecar_name"},
    _OF_ALL
    | {
        "cloud_pathways_external_sidecar_port",
        "cloud_pathways_external_sidecar_connect_timeout",
    },
)
#: The prefix of XLA's own flags, in all images.
_XLA: Final = "xla_"


def accepted(
    argv: Sequence[str], known: tuple[Collection[str], Collection[str]], *, takes_xla: bool = False
) -> list[str]:
    """Returns the flags for this project's server.

    An unknown flag ends the process, as in Abseil's parser.

    Args:
      argv: The stand-in's flags, each ``--name=value``.
      known: Names that this project's server knows too, and names that only the image knows.
      takes_xla: Whether every ``--xla_…`` is accepted as well.
    """
    taken = []
    passed_on, ignored = known
    for word in argv:
        name = word.removeprefix("--").partition("=")[0]
        if not word.startswith("--") or "=" not in word:
            _end(f"ERROR: the stand-in takes flags of the form --name=value, not {word!r}")
        if name in passed_on or (takes_xla and name.startswith(_XLA)):
            taken.append(word)
        elif name not in ignored:
            _end(f"ERROR: Unknown command line flag '{name}'")
    return taken


def _end(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.exit(1)
