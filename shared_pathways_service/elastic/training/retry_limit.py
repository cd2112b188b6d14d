"""A retry policy that counts attempts."""

from __future__ import annotations

from shared_pathways_service.api.validation import check_int

__all__ = ["ElasticRetryLimit"]


class ElasticRetryLimit:
    """A retry policy with a maximum number of attempts.

    Args:
      max_attempts: From 1 up.
    """

    def __init__(self, max_attempts: int) -> None:
        self.max_attempts = check_int("max_attempts", max_attempts, low=1)

    def __call__(self, attempt: int, error: Exception) -> bool:
        """Returns whether another attempt may follow this one, numbered from 1."""
        del error
        return attempt < self.max_attempts
