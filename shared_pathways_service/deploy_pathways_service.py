"""Runs `sps deploy` like upstream's script of this name (pathwaysutils 0.1.13).

Flags have absl's syntax and upstream's defaults, and the command returns when the service is
created. Usage: ``python -m shared_pathways_service.deploy_pathways_service --FLAG=VALUE …``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from shared_pathways_service.cli.absl_flags import run_command, sps_words

__all__ = ["main"]

#: Two defaults of upstream are not adopted: its bucket is not the user's, and its image for JAX
#: 0.9.0 does not serve this package's JAX.
_DEFAULTS: Final = {
    "jobset_name": "pathways-service",
    "tpu_type": "v6e",
    "topology": "2x2",
    "num_slices": 2,
    "max_restarts": 30,
    "wait": False,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Creates a service in a cluster, and ends the process.

    Args:
      arguments: By default those of the process.
    """
    given = sys.argv[1:] if arguments is None else arguments
    words = sps_words("deploy", given)
    defaults = dict(_DEFAULTS)
    if any(word.partition("=")[0] == "--slices" for word in words):
        for name in ("tpu_type", "topology", "num_slices"):
            del defaults[name]
    if any(not word.startswith("-") for word in words):
        del defaults["jobset_name"]
    run_command("deploy", given, defaults)


if __name__ == "__main__":
    main()
