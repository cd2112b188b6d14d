"""The options of elastic training, with checks of values and against the slices."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Final, Literal, get_args

from shared_pathways_service.api.validation import (
    check_bool,
    check_dns_label,
    check_int,
    check_seconds,
)
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["ALL", "BatchRule", "Options", "Policy", "SliceRange", "SnapshotPlace", "retrying"]

Policy = Literal["wait", "shrink"]
BatchRule = Literal["keep", "scale"]
SnapshotPlace = Literal["client", "peer"]

#: MaxText's value for all slices.
ALL: Final = -1
_RANGE: Final = re.compile(r"(\d+)(?::(\d+))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceRange:
    """The allowed numbers of slices: training waits for the least, and uses at most the most."""

    least: int
    most: int

    @property
    def policy(self) -> Policy:
        """``wait`` if all slices are needed, otherwise ``shrink``."""
        return "wait" if self.least == self.most else "shrink"

    @property
    def counts(self) -> range:
        """All allowed numbers."""
        return range(self.least, self.most + 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of elastic training, with the names and defaults of MaxText where it has them.

    One default differs: MaxText leaves `elastic_enabled` off, but a manager is created to have it
    on.

    Attributes:
      run_name: A DNS label, because jobs and directories are named after it.
      elastic_enabled: Whether training continues after a slice event; False: it runs once.
      elastic_timeout_seconds: The maximum wait for slices before each attempt; may be infinite.
      elastic_max_retries: Attempts that may fail, including the last; growing is not a failure.
      elastic_min_slice_count: Continue with at least so many slices (*shrink*); -1: only with all
        (*wait*).
      elastic_max_slice_count: Use at most so many slices; -1: all.
      slices: Both numbers in torchrun's form, ``"2:3"`` or ``"3"``; instead of them.
      elastic_max_scale_ups: The number of interruptions to add returned slices; after that training
        continues with the slices that it has.
      settle_seconds: How long a shrink waits for lost slices to be replaced before it continues
        with fewer. A spare takes a moment; without a wait, training would shrink and grow again.
      poll_interval: Seconds between two checks for missing slices.
      probe_timeout: Seconds within which a slice answers a probe, or counts as down.
      health_every: Steps between two barriers, at which all slices must answer; 0: none.
      health_timeout: Seconds that a barrier waits before the slices are probed.
      busy_timeout: Seconds after which all slices count as down if none answers. Devices that work
        in order do not answer probes during a step, so this is also the maximum duration of a step
        on those.
      flap_limit: Losses of one slice within `flap_window_seconds` after which it is excluded.
      flap_window_seconds: See `flap_limit`.
      flap_backoff_seconds: The duration of the first exclusion; doubled with each further loss.
      flap_backoff_most_seconds: The maximum duration of an exclusion.
      batch: The global batch on fewer slices: ``keep`` it (every allowed number of slices must
        divide it) or ``scale`` it with them.
      global_batch_size: Examples per step, on all slices; None: the training function makes its own
        batches.
      checkpoint_period: Steps between two checkpoints.
      checkpoint_period_seconds: Also after so many seconds; 0: not by time.
      checkpoint_period_epochs: Also after so many epochs; 0: not by epoch.
      checkpoint_keep: The number of newest checkpoints to keep.
      checkpoint_keep_period: Checkpoints of steps that it divides are kept forever; None: none.
      snapshot_period: Steps between two snapshots in memory; 0: none.
      snapshot_to: ``client``: in this process, survives the proxy; ``peer``: on a second slice,
        survives one slice.
      resume_from: The step of the checkpoint to begin with; None: the newest.
    """

    run_name: str = "run"
    elastic_enabled: bool = True
    elastic_timeout_seconds: float = 300.0
    elastic_max_retries: int = 10
    elastic_min_slice_count: int = ALL
    elastic_max_slice_count: int = ALL
    slices: str | None = None
    elastic_max_scale_ups: int = 100
    settle_seconds: float = 1.0
    poll_interval: float = 10.0
    probe_timeout: float = 10.0
    health_every: int = 10
    health_timeout: float = 10.0
    busy_timeout: float = 300.0
    flap_limit: int = 3
    flap_window_seconds: float = 600.0
    flap_backoff_seconds: float = 60.0
    flap_backoff_most_seconds: float = 3600.0
    batch: BatchRule = "keep"
    global_batch_size: int | None = None
    checkpoint_period: int = 100
    checkpoint_period_seconds: float = 0.0
    checkpoint_period_epochs: int = 0
    checkpoint_keep: int = 3
    checkpoint_keep_period: int | None = None
    snapshot_period: int = 0
    snapshot_to: SnapshotPlace = "client"
    resume_from: int | None = None

    def __post_init__(self) -> None:
        check_dns_label("run_name", self.run_name)
        check_bool("elastic_enabled", self.elastic_enabled)
        for name, least in _WHOLE.items():
            check_int(name, getattr(self, name), low=least)
        for name in _OPTIONAL:
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), low=1)
        if self.resume_from is not None:
            check_int("resume_from", self.resume_from, low=0)
        for name, zero in _SECONDS.items():
            endless = name == "elastic_timeout_seconds"
            check_seconds(name, getattr(self, name), zero=zero, infinity=endless)
        _check_choice("batch", self.batch, get_args(BatchRule))
        _check_choice("snapshot_to", self.snapshot_to, get_args(SnapshotPlace))
        for name in ("elastic_min_slice_count", "elastic_max_slice_count"):
            _check_count(name, getattr(self, name))
        self._wanted()

    def slice_range(self, total: int) -> SliceRange:
        """Returns the allowed numbers of slices.

        Args:
          total: The number of existing slices.

        Raises:
          InvalidRequestError: There are fewer slices than needed, the batch does not fit one of the
            numbers, or snapshots on a second slice are combined with a single slice.
        """
        least, most, field = self._wanted()
        value = getattr(self, field)
        most = total if most == ALL else most
        least = most if least == ALL else least
        if most > total:
            what = "elastic_max_slice_count" if field != "slices" else field
            raise InvalidRequestError(
                what, getattr(self, what), f"at most {total}, the number of slices"
            )
        if least > most:
            raise InvalidRequestError(field, value, f"at most {most}, the number of slices")
        allowed = SliceRange(least=least, most=most)
        self._check_batch(allowed)
        if self.snapshot_period and self.snapshot_to == "peer" and least < 2:
            raise InvalidRequestError(
                "snapshot_to",
                self.snapshot_to,
                "client, or at least 2 slices: a single slice has no second one for a copy",
            )
        return allowed

    def batch_size(self, slice_count: int, total: int) -> int:
        """Returns the examples per step on a number of slices.

        Args:
          slice_count: The number of slices of training.
          total: The number of slices for `global_batch_size`.

        Raises:
          InvalidRequestError: `global_batch_size` was not given.
        """
        if self.global_batch_size is None:
            raise InvalidRequestError("global_batch_size", None, "the examples of a step")
        if self.batch == "keep":
            return self.global_batch_size
        return self.global_batch_size * slice_count // total

    def _wanted(self) -> tuple[int, int, str]:
        """Returns the least and the most slices, and the field that sets them."""
        if self.slices is None:
            return self.elastic_min_slice_count, self.elastic_max_slice_count, _MIN
        if (self.elastic_min_slice_count, self.elastic_max_slice_count) != (ALL, ALL):
            raise InvalidRequestError(
                "slices",
                self.slices,
                "either it or elastic_min_slice_count and elastic_max_slice_count",
            )
        found = _RANGE.fullmatch(self.slices) if isinstance(self.slices, str) else None
        if found is not None:
            least = int(found[1])
            most = int(found[2] or least)
            if 1 <= least <= most:
                return least, most, "slices"
        raise InvalidRequestError("slices", self.slices, 'MIN:MAX or N, e.g. "2:3", from 1 up')

    def _check_batch(self, allowed: SliceRange) -> None:
        size = self.global_batch_size
        if size is None:
            return
        for count in allowed.counts:
            if self.batch == "keep" and size % count:
                better = f"; batch='scale' is the other way, or {_MIN}={allowed.most}"
                raise InvalidRequestError(
                    "global_batch_size",
                    size,
                    f"a number that each count of slices from {allowed.least} to {allowed.most} "
                    f"divides ({count} does not){better}",
                )
            if self.batch == "scale" and size * count % allowed.most:
                raise InvalidRequestError(
                    "global_batch_size",
                    size,
                    f"a multiple of {allowed.most}, the most slices: {count} of them would have "
                    f"{size * count / allowed.most:g} examples",
                )


_MIN: Final = "elastic_min_slice_count"
#: The minimum of each option.
_WHOLE: Final = {
    "elastic_max_retries": 1,
    "elastic_max_scale_ups": 0,
    "health_every": 0,
    "flap_limit": 1,
    "checkpoint_period": 1,
    "checkpoint_period_epochs": 0,
    "checkpoint_keep": 1,
    "snapshot_period": 0,
}
_OPTIONAL: Final = ("global_batch_size", "checkpoint_keep_period")
#: Whether each option may be 0.
_SECONDS: Final = {
    "elastic_timeout_seconds": True,
    "settle_seconds": True,
    "poll_interval": False,
    "probe_timeout": False,
    "health_timeout": False,
    "busy_timeout": False,
    "flap_window_seconds": False,
    "flap_backoff_seconds": True,
    "flap_backoff_most_seconds": True,
    "checkpoint_period_seconds": True,
}


def _check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidRequestError(field, value, " or ".join(choices))


def _check_count(field: str, value: int) -> None:
    if value != ALL:
        check_int(field, value, low=1)


def retrying(
    options: Options,
    max_retries: int | None,
    minimum_slice_count: int | None,
    poll_interval: float,
    timeout: float | None,
) -> Options:
    """Returns options with the arguments of pathwaysutils' `elastic_retry`; None: no limit."""
    return dataclasses.replace(
        options,
        elastic_max_retries=sys.maxsize if max_retries is None else max_retries,
        elastic_max_scale_ups=sys.maxsize,
        slices=None,
        elastic_min_slice_count=ALL if minimum_slice_count is None else minimum_slice_count,
        elastic_max_slice_count=ALL,
        settle_seconds=0.0,
        poll_interval=poll_interval,
        elastic_timeout_seconds=float("inf") if timeout is None else timeout,
    )
