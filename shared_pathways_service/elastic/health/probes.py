"""Probes slices concurrently, each with a deadline."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shared_pathways_service.elastic.policy.triage import Verdict, classify
from shared_pathways_service.elastic.waiting import Waiters

__all__ = ["Answers", "Probe", "Probes", "add_one_everywhere"]

#: Probes the devices of one slice; raises if they do not answer correctly.
Probe = Callable[[Sequence[jax.Device]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """The results of probes.

    Attributes:
      good: Slices that answered correctly.
      bad: The problem of each other slice, in words.
      silent: Those of the others that did not answer at all.
      starting: Slices that did not answer because their executors start; they are not among `bad`.
      replaced: Those of them that answered before: they were lost since, and replaced.
      dead: Whether no slice answered because the proxy has ended or hangs.
      gone: The error if every slice reported that the proxy has ended; None: it may run.
    """

    good: tuple[int, ...]
    bad: Mapping[int, str]
    silent: tuple[int, ...]
    dead: bool
    gone: str | None = None
    starting: tuple[int, ...] = ()
    replaced: tuple[int, ...] = ()

    def excusing(self, starting: Collection[int], again: Collection[int] = ()) -> Answers:
        """Returns the results, in which silent slices that start are neither bad nor silent.

        They do not excuse others: if no slice answers, and not all start, the proxy is dead.

        Args:
          starting: Slices that start.
          again: Those of them that have answered before.
        """
        excused = tuple(i for i in self.silent if i in starting)
        bad = {i: why for i, why in self.bad.items() if i not in excused}
        return dataclasses.replace(
            self,
            bad=bad,
            silent=tuple(i for i in self.silent if i not in excused),
            starting=excused,
            replaced=tuple(i for i in excused if i in again),
            dead=self.dead and bool(bad),
        )


class Probes:
    """Probes slices, each within `timeout` seconds and on a waiter of its own."""

    def __init__(
        self,
        devices: Mapping[int, Sequence[jax.Device]],
        timeout: float,
        waiters: Waiters,
        probe: Probe,
    ) -> None:
        self._devices = devices
        self._timeout = timeout
        self._waiters = waiters
        self._probe = probe

    def ask(self, indices: Iterable[int]) -> Answers:
        """Probes slices, and waits until all have answered or the deadline has passed."""
        asked = {i: functools.partial(self._probe, self._devices[i]) for i in indices}
        outcomes = self._waiters.call_all(asked, self._timeout)
        # Read once: one may end at any moment.
        silent = tuple(i for i, outcome in outcomes.items() if not outcome.wait(0))
        errors = {i: o.error for i, o in outcomes.items() if i not in silent and o.error}
        good = tuple(i for i in outcomes if i not in silent and i not in errors)
        bad = {i: str(error).split("\n", 1)[0] for i, error in errors.items()}
        bad |= dict.fromkeys(silent, f"no answer within {self._timeout:g} s")
        no_proxy = not good and all(_is_of_ended_proxy(error) for error in errors.values())
        return Answers(
            good=good,
            bad=bad,
            silent=silent,
            dead=no_proxy and bool(bad),
            gone=next(iter(bad.values())) if no_proxy and errors and not silent else None,
        )


def add_one_everywhere(devices: Sequence[jax.Device]) -> None:
    """Adds one on each device of a slice, and checks the results.

    Raises:
      jax.errors.JaxRuntimeError: The slice does not compute.
      ValueError: The slice computes wrong results.
    """
    given = np.arange(len(devices), dtype=np.float32)
    sums = _add_one(jax.device_put(given, _over(devices)))
    # First, because jaxlib's proxy client warns on standard error about each part that it cannot
    # fetch.
    jax.block_until_ready(sums)
    found = np.asarray(sums)
    if not np.array_equal(found, given + 1):
        raise ValueError(f"{devices[0]!r} and those beside it computed {found}, not {given + 1}")


@jax.jit
def _add_one(values: jax.Array) -> jax.Array:
    return values + 1


def _over(devices: Sequence[jax.Device]) -> NamedSharding:
    # Made each time: a cached function would keep the client of an ended proxy.
    return NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec("device"))


def _is_of_ended_proxy(error: BaseException) -> bool:
    is_of_jax = isinstance(error, jax.errors.JaxRuntimeError)
    return is_of_jax and classify(str(error)).verdict is Verdict.PROXY
