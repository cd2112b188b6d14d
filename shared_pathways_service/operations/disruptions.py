"""Decides the failures of `sps chaos` from a seed, the current time and the state of slices.

Failures form a Poisson process: the time to the next one is exponentially distributed with a given
mean (MTBF). A failure is skipped while the allowed number of slices is down, so the MTBF applies to
the time in which something may fail.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Final, Literal, get_args

from shared_pathways_service.api.validation import check_int, check_seconds
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["Chaos", "ChaosOptions", "Kind", "Moment", "SliceView", "Strike", "moments"]

Kind = Literal["kill", "hang", "proxy"]

#: Seconds for which the service keeps a slice down at most.
_LONGEST_DOWN_S: Final = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChaosOptions:
    """The rate and the kinds of failures.

    Attributes:
      mtbf_s: Mean time between failures, in seconds.
      down_for_s: Seconds that a slice is down, or hangs.
      kinds: Kinds of failures, equally likely: a slice's workers are killed (``kill``) or stopped
        (``hang``), or a tenant's proxy is killed (``proxy``).
      slices_at_once: The number of slices that may be down at the same time.
      only_held: Whether slices without a holder are spared.
      seed: The same seed gives the same failures.

    Raises:
      InvalidRequestError: A value is out of its range.
    """

    mtbf_s: float = 30.0
    down_for_s: float = 5.0
    kinds: tuple[Kind, ...] = ("kill",)
    slices_at_once: int = 1
    only_held: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_seconds("--mtbf", self.mtbf_s, zero=False)
        check_seconds("--down-for", self.down_for_s)
        if self.down_for_s > _LONGEST_DOWN_S:
            raise InvalidRequestError("--down-for", self.down_for_s, "at most 1h")
        known = get_args(Kind)
        if not self.kinds or not set(self.kinds) <= set(known):
            raise InvalidRequestError("--kinds", ",".join(self.kinds), f"of {', '.join(known)}")
        check_int("--slices-at-once", self.slices_at_once, low=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """A planned failure; `pick`, from 0 up to 1, selects the target among the possible ones."""

    at_s: float
    kind: Kind
    pick: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceView:
    """A physical slice in the resource manager's status, with its holder, if it has one."""

    id: str
    is_up: bool
    tenant: str | None = None
    virtual_index: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strike:
    """A failure to cause now.

    Attributes:
      slice_id: The slice; None: the target is a proxy.
      tenant: The holder of the slice, or the tenant of the proxy; None: no holder.
    """

    at_s: float
    kind: Kind
    slice_id: str | None = None
    tenant: str | None = None
    virtual_index: int | None = None


def moments(options: ChaosOptions) -> Iterator[Moment]:
    """Yields the planned failures of a seed, without end."""
    draw = random.Random(options.seed)  # noqa: S311 - not for secrets
    at_s = 0.0
    while True:
        at_s += draw.expovariate(1.0 / options.mtbf_s)
        yield Moment(at_s=at_s, kind=draw.choice(options.kinds), pick=draw.random())


class Chaos:
    """Decides the effect of each planned failure (`next`); times are seconds since the start."""

    def __init__(self, options: ChaosOptions) -> None:
        self._options = options
        self._moments = moments(options)
        self._until: dict[str, float] = {}
        self.next = next(self._moments)
        self.passed_over = 0

    def strike(self, now_s: float, slices: Sequence[SliceView]) -> Strike | None:
        """Consumes the next planned failure, and returns its effect on the service's slices.

        Returns:
          None: the failure is skipped, because no target exists or is allowed.
        """
        moment, self.next = self.next, next(self._moments)
        ordered = sorted(slices, key=lambda view: view.id)
        if moment.kind == "proxy":
            strike = _on_proxy(moment, now_s, ordered)
        else:
            strike = self._on_slice(moment, now_s, ordered)
        self.passed_over += strike is None
        return strike

    def held(self, now_s: float) -> tuple[str, ...]:
        """Returns the slices that earlier failures still hold down."""
        return tuple(sorted(name for name, until in self._until.items() if until > now_s))

    def _on_slice(self, moment: Moment, now_s: float, slices: Sequence[SliceView]) -> Strike | None:
        held = self.held(now_s)
        # A hung slice counts as up for a while, and one that was just released as down.
        up = [view for view in slices if view.is_up and view.id not in held]
        if len(slices) - len(up) >= self._options.slices_at_once:
            return None
        able = [view for view in up if view.tenant is not None or not self._options.only_held]
        if not able:
            return None
        chosen = able[int(moment.pick * len(able))]
        self._until[chosen.id] = now_s + self._options.down_for_s
        return Strike(
            at_s=now_s,
            kind=moment.kind,
            slice_id=chosen.id,
            tenant=chosen.tenant,
            virtual_index=chosen.virtual_index,
        )


def _on_proxy(moment: Moment, now_s: float, slices: Sequence[SliceView]) -> Strike | None:
    tenants = sorted({view.tenant for view in slices if view.tenant is not None})
    if not tenants:
        return None
    return Strike(at_s=now_s, kind="proxy", tenant=tenants[int(moment.pick * len(tenants))])
