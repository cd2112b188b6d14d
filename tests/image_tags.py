"""Tags of the images that scripts/images builds."""

from __future__ import annotations

import re

from harness.processes import REPOSITORY
from shared_pathways_service.api.jax_releases import release_of
from shared_pathways_service.version import __version__


def default_tag() -> str:
    """Returns the tag that scripts/images gives: of this package, and of the newest JAX pinned."""
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    newest = max(re.findall(r"^jax==([0-9.]+)", pins, re.MULTILINE), key=release_of)
    return f"{__version__}-jax-{newest}"
