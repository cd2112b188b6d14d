"""The limit on attempts, with the user's callbacks and retry policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from shared_pathways_service.api.validation import check_int
from shared_pathways_service.elastic.errors import ElasticRuntimeError, ScaleUpSignalError
from shared_pathways_service.elastic.policy.options import Options

__all__ = ["Budget", "Callbacks", "ElasticRetryLimit", "RetryPolicy"]

#: Returns whether to continue after an attempt, numbered from 1, that ended with this error.
RetryPolicy = Callable[[int, Exception], bool]


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Callbacks:
    """The user's callbacks, before each attempt and after each event that ends one."""

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None


class Budget:
    """Counts failures and scale-ups of a run.

    Attributes:
      failures: Attempts that failed.
      scale_ups: Attempts that ended because more slices were available.
    """

    def __init__(
        self, options: Options, retry_policy: RetryPolicy | None, callbacks: Callbacks
    ) -> None:
        self.failures = 0
        self.scale_ups = 0
        self._options = options
        self._retry_policy = retry_policy
        self._callbacks = callbacks

    @property
    def may_scale_up(self) -> bool:
        """Whether another attempt may end for more slices."""
        return self.scale_ups < self._options.elastic_max_scale_ups

    def count_scale_up(self, signal: ScaleUpSignalError) -> None:
        """Counts an attempt that ended for more slices; raises if the policy ends training."""
        self.scale_ups += 1
        if not self._goes_on(signal):
            raise ElasticRuntimeError(
                f"the retry policy ends training at its scale-up {self.scale_ups}"
            ) from signal

    def count_failure(self, error: Exception, text: str = "") -> None:
        """Counts a failed attempt; raises if it was the last one."""
        self.failures += 1
        spent = self.failures >= self._options.elastic_max_retries
        if not self._goes_on(error) or spent:
            raise ElasticRuntimeError(
                f"Elastic attempt {self.failures} failed: {text or error}",
                hint="elastic_max_retries sets the number of attempts",
            ) from error

    def _goes_on(self, error: Exception) -> bool:
        """Calls the user's callback for an event, and returns whether to continue."""
        if self._callbacks.after is not None:
            self._callbacks.after()
        attempt = self.failures + self.scale_ups
        return self._retry_policy is None or self._retry_policy(attempt, error)
