"""Which metrics of one session are written, with which values, and when: pure.

Names, kinds, units and labels are those that pathwaysutils 0.1.13 writes (its shared Pathways
service's ``metrics_collector``), so that its dashboards and alerts show sessions of either. Unlike
there a level is written again while it holds, as Cloud Monitoring draws what is not written as a
gap, and is zero again when the session has ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final, Literal

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.session.messages import Phase, Snapshot

__all__ = ["LABELS", "LINGER_S", "METRICS", "PREFIX", "Meter", "Metric", "Reading", "place_of"]

PREFIX: Final = "custom.googleapis.com/shared_pathways_service/"

#: Labels of every metric, with their descriptions.
LABELS: Final = {
    "client_instance_id": "Unique execution identifier",
    "cluster_name": "GKE cluster name",
    "job_name": "Pathways proxy job name",
}

#: Seconds between two points of one time series. From Cloud Monitoring's "Quotas and limits" one
#: each 10 s is quoted, and of late one each 5 s; 5.5 s were reported refused. The longer one, and
#: some more, as pathwaysutils has it.
SPACING_S: Final = 10.5
#: Seconds after which a level that still holds is written again.
REPEAT_S: Final = 60.0
#: Seconds that the end of a session may be told of after it: one spacing and a call.
LINGER_S: Final = 12.0
#: Values of one level that wait to be written: the next one, and where it is by now.
_WAITING: Final = 2

#: Failures after which the wait grows no more.
_DOUBLINGS: Final = 10

#: Phases in which a proxy that was asked for is waited for, or runs.
_STANDING = (Phase.START, Phase.TUNNEL, Phase.PROBE, Phase.PLACE, Phase.SERVE)
_WANTED = (Phase.PREFLIGHT, Phase.CREATE, *_STANDING)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric, a gauge.

    Attributes:
      name: Behind `PREFIX`.
      value_type: As `google.api.MetricDescriptor` has it.
      is_level: Whether it stands until it changes; else it tells of a moment, once.
    """

    name: str
    description: str
    display_name: str
    value_type: Literal["INT64", "DOUBLE"]
    unit: str
    is_level: bool


def _metric(
    name: str,
    display_name: str,
    description: str,
    *,
    unit: str = "1",
    value_type: Literal["INT64", "DOUBLE"] = "INT64",
    is_level: bool = True,
) -> Metric:
    return Metric(
        name=name,
        description=description,
        display_name=display_name or name,
        value_type=value_type,
        unit=unit,
        is_level=is_level,
    )


_ACTIVE: Final = _metric("num_active_users", "", "Number of active users at any given time")
_IN_USE: Final = _metric(
    "capacity_in_use",
    "Capacity (chips) in use",
    "Number of chips that are actively running workloads",
    unit="chips",
)
_ASSIGNMENT: Final = _metric(
    "assignment_time",
    "Capacity assignment time",
    "Time to assign slice(s) to an incoming client",
    unit="s",
    value_type="DOUBLE",
    is_level=False,
)
_SUCCESSFUL: Final = _metric(
    "num_successful_reqs",
    "Successful capacity assignment requests",
    "Number of user requests that got capacity assignment successfully",
    is_level=False,
)
_USERS_WAITING: Final = _metric(
    "num_users_waiting", "Users waiting", "Number of users waiting for capacity"
)
_REQUESTED: Final = _metric(
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

    Args:
      context: e.g. ``gke_my-project_us-central2_my-cluster``, as ``gcloud container clusters
        get-credentials`` names them.
    """
    parts = context.split("_")
    if len(parts) == 4 and parts[0] == "gke" and all(parts):
        return parts[1], parts[3]
    return "", context


class _Series:
    """What of one metric was written, and what is to be.

    Attributes:
      queue: Values to write, oldest first.
      written_at: When one was last tried to be.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.queue: list[float] = []
        self.written_at: float | None = None
        self._value = 0.0

    @property
    def is_zero(self) -> bool:
        """Whether it stands at zero."""
        return not self._value

    def offer(self, value: float) -> None:
        """Takes a value in; only a change is worth a point."""
        if value == self._value:
            return
        self._value = value
        self._queue(*self.queue, value)

    def take(self, now: float) -> Reading:
        """Returns what to write: what waits, else the value again."""
        self.written_at = now
        return Reading(metric=self.metric, value=self.queue.pop(0) if self.queue else self._value)

    def put_back(self, value: float) -> None:
        """Takes back a value that could not be written, if it is not too late for it."""
        if len(self.queue) < _WAITING:
            self._queue(value, *self.queue)

    def keep_last(self) -> None:
        """Lets go of what there is no time for; a zero says nothing where nothing was said."""
        self.queue = [] if self.written_at is None else self.queue[-1:]

    def _queue(self, *values: float) -> None:
        kept = (*values[: _WAITING - 1], values[-1]) if len(values) > _WAITING else values
        self.queue = [v for i, v in enumerate(kept) if i == 0 or v != kept[i - 1]]


class Meter:
    """From what is known of a session to the points that tell of it.

    What `take` returned is answered by `delivered` or `failed` before `take` is called again.

    Args:
      spacing_s: Seconds between two points of one metric.
      repeat_s: Seconds after which a level is told again; the longest wait after failures too.
      linger_s: Seconds after the session's end in which it must be told.
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
        self._end_by: float | None = None
        self._taken: tuple[Reading, ...] = ()
        self._failures = 0
        self._not_before = float("-inf")

    @property
    def end_by(self) -> float | None:
        """When nothing more is to be written; None before the session's end."""
        return self._end_by

    @property
    def is_done(self) -> bool:
        """Whether the session has ended and all of it is told."""
        waiting = any(series.queue for series in self._series.values())
        return self._end_by is not None and not waiting and not self._taken

    @property
    def next_due(self) -> float | None:
        """When `take` has something; None: not before the next `observe`."""
        dues = [due for series in self._series.values() if (due := self._due(series)) is not None]
        return max(min(dues), self._not_before) if dues else None

    def observe(self, snapshot: Snapshot, now: float) -> None:
        """Takes in what is known of the session.

        Args:
          snapshot: As a whole.
          now: Seconds of any clock that only grows; the same one in every call.
        """
        if snapshot.phase is Phase.CREATE and self._asked_at is None:
            self._asked_at = now
        for metric, value in _levels(snapshot):
            self._series[metric].offer(value)
        if snapshot.placed and not self._placed:
            self._placed = True
            self._series[_SUCCESSFUL].offer(1)
            if self._asked_at is not None:
                self._series[_ASSIGNMENT].offer(float(now - self._asked_at))
        if snapshot.ended and self._end_by is None:
            self._end_by = now + self._linger_s

    def take(self, now: float) -> tuple[Reading, ...]:
        """Returns the values to write now, at most one a metric."""
        if now < self._not_before:
            return ()
        if self._end_by is not None:
            for series in self._series.values():
                if len(series.queue) > 1 and now + self._spacing_s > self._end_by:
                    series.keep_last()
        due = [(self._due(series), series) for series in self._series.values()]
        self._taken = tuple(s.take(now) for at, s in due if at is not None and at <= now)
        return self._taken

    def delivered(self) -> None:
        """What was taken is written, or will never be."""
        self._taken = ()
        self._failures = 0

    def failed(self, now: float) -> None:
        """What was taken may be written later."""
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
        if not series.metric.is_level or series.is_zero:
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
    return sum(map(_chips_of, instance_types))


def _chips_of(instance_type: str) -> int:
    try:
        return InstanceType.parse(instance_type).chips
    except InvalidRequestError:
        return 0  # a type of a newer service
