"""Decides which metrics of one session are written, with which values, and when: pure.

Names, kinds, units and labels are those of pathwaysutils 0.1.13 (its shared Pathways service's
``metrics_collector``), so that its dashboards and alerts work for both. Unlike there, a level is
repeated while it holds, because Cloud Monitoring draws missing points as a gap, and becomes zero at
the session's end.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Final, Literal

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.patience import timeouts
from shared_pathways_service.session.messages import Phase, Snapshot

__all__ = ["LABELS", "LINGER_S", "METRICS", "PREFIX", "Meter", "Metric", "Reading", "place_of"]

PREFIX: Final = "custom.googleapis.com/shared_pathways_service/"

#: Labels of every metric, with their descriptions.
LABELS: Final = {
    "client_instance_id": "Unique execution identifier",
    "cluster_name": "GKE cluster name",
    "job_name": "Pathways proxy job name",
}

#: Seconds between two points of one time series. Cloud Monitoring's "Quotas and limits" is quoted
#: with 10 s, and recently with 5 s; refusals at 5.5 s were reported. This is the longer one with a
#: margin, as in pathwaysutils.
SPACING_S: Final = 10.5
#: Seconds after which an unchanged level is written again.
REPEAT_S: Final = 60.0
#: Seconds after a session's end in which it may be reported: one spacing, and calls that a busy
#: machine delays. It ends as soon as all is reported.
LINGER_S: Final = timeouts.METRICS_LINGER.seconds
#: Maximum number of queued values per level: the next one and the latest one.
_WAITING: Final = 2

#: Number of failures after which the wait does not grow further.
_DOUBLINGS: Final = 10

#: Phases in which the proxy starts or runs.
_STANDING = (Phase.START, Phase.TUNNEL, Phase.PROBE, Phase.PLACE, Phase.SERVE)
_WANTED = (Phase.PREFLIGHT, Phase.CREATE, *_STANDING)


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric, a gauge.

    Attributes:
      name: The part after `PREFIX`.
      value_type: As in `google.api.MetricDescriptor`.
      is_level: Whether it holds until it changes; otherwise each value is written once.
    """

    name: str
    display_name: str
    description: str
    unit: str = "1"
    value_type: Literal["INT64", "DOUBLE"] = "INT64"
    is_level: bool = True


_ACTIVE: Final = Metric(
    "num_active_users", "num_active_users", "Number of active users at any given time"
)
_IN_USE: Final = Metric(
    "capacity_in_use",
    "Capacity (chips) in use",
    "Number of chips that are actively running workloads",
    unit="chips",
)
_ASSIGNMENT: Final = Metric(
    "assignment_time",
    "Capacity assignment time",
    "Time to assign slice(s) to an incoming client",
    unit="s",
    value_type="DOUBLE",
    is_level=False,
)
_SUCCESSFUL: Final = Metric(
    "num_successful_reqs",
    "Successful capacity assignment requests",
    "Number of user requests that got capacity assignment successfully",
    is_level=False,
)
_USERS_WAITING: Final = Metric(
    "num_users_waiting", "Users waiting", "Number of users waiting for capacity"
)
_REQUESTED: Final = Metric(
    "requested_capacity",
    "Requested capacity (chips)",
    "Number of chips requested by an incoming client",
    unit="chips",
)

METRICS: Final = (_ACTIVE, _IN_USE, _ASSIGNMENT, _SUCCESSFUL, _USERS_WAITING, _REQUESTED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """A value to write now: an int for an INT64, else a float."""

    metric: Metric
    value: float


def place_of(context: str) -> tuple[str, str]:
    """Returns project and cluster of a kubeconfig context that gcloud wrote, else ``("", name)``.

    gcloud's names are like ``gke_my-project_us-central2_my-cluster``.
    """
    parts = context.split("_")
    if len(parts) == 4 and parts[0] == "gke" and all(parts):
        return parts[1], parts[3]
    return "", context


class _Series:
    """The written and queued values of one metric.

    Attributes:
      queue: Values to write, oldest first.
      written_at: Time of the last attempt to write one.
      value: The last value.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.queue: list[float] = []
        self.written_at: float | None = None
        self.value = 0.0

    def offer(self, value: float) -> None:
        """Queues a value if it differs from the last one."""
        if value == self.value:
            return
        self.value = value
        self._queue(*self.queue, value)

    def take(self, now: float) -> Reading:
        """Returns the next value to write: from the queue, or else the last value again."""
        self.written_at = now
        return Reading(metric=self.metric, value=self.queue.pop(0) if self.queue else self.value)

    def put_back(self, value: float) -> None:
        """Queues a value again that could not be written, unless it is too late."""
        if len(self.queue) < _WAITING:
            self._queue(value, *self.queue)

    def keep_last(self) -> None:
        """Drops queued values except the last; drops all if none was written before."""
        self.queue = [] if self.written_at is None else self.queue[-1:]

    def _queue(self, *values: float) -> None:
        kept = (*values[: _WAITING - 1], values[-1]) if len(values) > _WAITING else values
        self.queue = [v for i, v in enumerate(kept) if i == 0 or v != kept[i - 1]]


class Meter:
    """Converts states of a session to points of its metrics.

    Each `take` must be followed by `delivered` or `failed` before the next `take`.

    Args:
      spacing_s: Seconds between two points of one metric.
      repeat_s: Seconds after which a level is repeated; also the longest wait after failures.
      linger_s: Seconds after the session's end in which it must be reported.

    Attributes:
      end_by: Time after which no value is written; None before the session's end.
    """

    def __init__(
        self,
        *,
        spacing_s: float = SPACING_S,
        repeat_s: float = REPEAT_S,
        linger_s: float = LINGER_S,
    ) -> None:
        self._spacing_s = spacing_s
        self._repeat_s = repeat_s
        self._linger_s = linger_s
        self._series = {metric: _Series(metric) for metric in METRICS}
        self._asked_at: float | None = None
        self._placed = False
        self.end_by: float | None = None
        self._taken: tuple[Reading, ...] = ()
        self._failures = 0
        self._not_before = float("-inf")

    @property
    def is_done(self) -> bool:
        """Whether the session has ended and all values are written."""
        waiting = any(series.queue for series in self._series.values())
        return self.end_by is not None and not waiting and not self._taken

    @property
    def next_due(self) -> float | None:
        """Time at which `take` has a value; None: not before the next `observe`."""
        dues = [due for series in self._series.values() if (due := self._due(series)) is not None]
        return max(min(dues), self._not_before) if dues else None

    def observe(self, snapshot: Snapshot, now: float) -> None:
        """Records the session's state at a time of a monotonic clock."""
        if snapshot.phase is Phase.CREATE and self._asked_at is None:
            self._asked_at = now
        for metric, value in _levels(snapshot):
            self._series[metric].offer(value)
        if snapshot.placed and not self._placed:
            self._placed = True
            self._series[_SUCCESSFUL].offer(1)
            if self._asked_at is not None:
                self._series[_ASSIGNMENT].offer(float(now - self._asked_at))
        if snapshot.ended and self.end_by is None:
            self.end_by = now + self._linger_s

    def take(self, now: float) -> tuple[Reading, ...]:
        """Returns the values to write now, at most one per metric."""
        if now < self._not_before:
            return ()
        if self.end_by is not None:
            for series in self._series.values():
                if len(series.queue) > 1 and now + self._spacing_s > self.end_by:
                    series.keep_last()
        due = [(self._due(series), series) for series in self._series.values()]
        self._taken = tuple(s.take(now) for at, s in due if at is not None and at <= now)
        return self._taken

    def delivered(self) -> None:
        """Records that the taken values were written, or were refused permanently."""
        self._taken = ()
        self._failures = 0

    def failed(self, now: float) -> None:
        """Records that the taken values were not written, but may be written later."""
        for reading in self._taken:
            self._series[reading.metric].put_back(reading.value)
        self._taken = ()
        self._not_before = now + min(self._spacing_s * 2**self._failures, self._repeat_s)
        self._failures = min(self._failures + 1, _DOUBLINGS)

    def _due(self, series: _Series) -> float | None:
        if series.written_at is None:
            return float("-inf") if series.queue else None
        if series.queue:
            return series.written_at + self._spacing_s
        if not series.metric.is_level or not series.value:
            return None
        return series.written_at + self._repeat_s


def _levels(snapshot: Snapshot) -> Iterable[tuple[Metric, int]]:
    stands = snapshot.phase in _STANDING
    runs = stands and snapshot.placed
    placed = (view.instance_type for view in snapshot.slices if view.state == "placed")
    wanted = (view.instance_type for view in snapshot.slices)
    yield _REQUESTED, _chips(wanted) if snapshot.phase in _WANTED else 0
    yield _USERS_WAITING, int(stands and not snapshot.placed)
    yield _ACTIVE, int(runs)
    yield _IN_USE, _chips(placed) if runs else 0


def _chips(instance_types: Iterable[str]) -> int:
    chips = 0
    for instance_type in instance_types:
        # (A newer service may have other types.)
        with contextlib.suppress(InvalidRequestError):
            chips += InstanceType.parse(instance_type).chips
    return chips
