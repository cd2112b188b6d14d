"""Buckets with which the images fail, by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from shared_pathways_service.testing.google_images import (
    FULL_BUCKET,
    LOST_BUCKET,
    MISSING_BUCKET,
    front,
)
from shared_pathways_service.testing.google_images.log_texts import PUBLISHED, LogText

__all__ = ["fails"]

_FLAG: Final = "--gcs_scratch_location="
_FAULTS: Final[Mapping[str, LogText]] = {
    MISSING_BUCKET: PUBLISHED["the bucket is missing"],
    FULL_BUCKET: PUBLISHED["the bucket has no room for rules"],
    LOST_BUCKET: PUBLISHED["the bucket is missing"],
}


def fails(argv: Sequence[str]) -> bool:
    """Whether a server with these flags ends with an error of its bucket, which this logs.

    Google's page names the resource manager and the workers; that a proxy fails too, and that they
    end, are guesses.
    """
    for word in argv:
        words = word.removeprefix(_FLAG).split("/")
        bucket, path = "/".join(words[:3]), Path("/", *words[3:])
        is_there = bucket == LOST_BUCKET and not path.is_file()
        if word.startswith(_FLAG) and not is_there and (fault := _FAULTS.get(bucket)):
            front.log("E", fault)
            return True
    return False
