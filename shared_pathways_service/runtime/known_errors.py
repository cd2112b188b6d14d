"""Explains errors in logs of Google's images that Google's page on them lists.

The page is "Troubleshoot Pathways on cloud" (AI Hypercomputer), section "Debugging common errors".
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

__all__ = ["KnownError", "find_known_error"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownError:
    """An explanation of an error.

    Attributes:
      cause: What has happened.
      hint: What to do.
      is_permanent: Whether it occurs again until somebody acts.
    """

    cause: str
    hint: str
    is_permanent: bool


_MISSING_BUCKET: Final = KnownError(
    cause="the bucket of its --gcs_scratch_location does not exist",
    hint="create the bucket, or name another one: gcs_bucket= of connect() for the proxy, "
    "--gcs-bucket of `sps deploy` for the service",
    is_permanent=True,
)
_FULL_BUCKET: Final = KnownError(
    cause="the bucket of its --gcs_scratch_location has no room for another lifecycle rule",
    hint="delete lifecycle rules of the bucket that are not used any more, or name another one: "
    "gcs_bucket= of connect() for the proxy, --gcs-bucket of `sps deploy` for the service",
    is_permanent=True,
)
_FULL_MEMORY: Final = KnownError(
    cause="the memory of the devices (HBM) was probably full: its log has RESOURCE_EXHAUSTED "
    "beside SIGTERM",
    hint="have the program use less memory of the devices: smaller batches, arrays sharded over "
    "more devices, donated arguments, jax.checkpoint",
    is_permanent=False,
)
_BY_TEXT: Final = (
    (re.compile(r"The specified bucket does not exist.*persistent cache"), _MISSING_BUCKET),
    (re.compile(r"Lifecycle matches_prefix cannot specify more than \d+ prefixes"), _FULL_BUCKET),
)
#: Words that mean a full memory if a log has both.
_BOTH: Final = ("RESOURCE_EXHAUSTED", "SIGTERM")


def find_known_error(log: str) -> KnownError | None:
    """Returns the explanation of the end of a log; None: it shows no known error."""
    for pattern, error in _BY_TEXT:
        if pattern.search(log):
            return error
    return _FULL_MEMORY if all(word in log for word in _BOTH) else None
