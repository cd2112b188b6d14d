"""Probes slices without a manager; the names are those of ``pathwaysutils.elastic.elastic``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import jax

from shared_pathways_service.api.validation import check_int, check_seconds
from shared_pathways_service.elastic.health.probes import Probes, add_one_everywhere
from shared_pathways_service.elastic.policy.options import Options
from shared_pathways_service.elastic.policy.triage import Verdict, classify
from shared_pathways_service.elastic.slices import group_by_slice
from shared_pathways_service.elastic.waiting import Waiters

__all__ = [
    "get_active_slice_indices",
    "get_slice_to_devices",
    "is_error_due_to_slice_down",
    "wait_for_slices",
]

_ASK_S: Final = Options.probe_timeout


def get_slice_to_devices(devices: Iterable[jax.Device]) -> Mapping[int, Sequence[jax.Device]]:
    """Returns the devices of each slice, by their ``slice_index``."""
    return group_by_slice(devices)


def get_active_slice_indices(
    slice_to_devices: Mapping[int, Sequence[jax.Device]] | None = None,
    *,
    timeout: float = _ASK_S,
) -> AbstractSet[int]:
    """Returns the slices that compute.

    Args:
      slice_to_devices: The devices of each slice; None: of `jax.devices()`.
      timeout: Seconds for all slices to answer, concurrently.
    """
    devices = group_by_slice(jax.devices()) if slice_to_devices is None else slice_to_devices
    with _asking(devices, check_seconds("timeout", timeout, zero=False)) as probes:
        return frozenset(probes.ask(devices).good)


def wait_for_slices(
    slice_count: int | None = None,
    poll_interval: float = 10,
    timeout: float | None = None,
    slice_to_devices: Mapping[int, Sequence[jax.Device]] | None = None,
) -> AbstractSet[int]:
    """Waits until a number of slices compute; returns all that do.

    Args:
      slice_count: The number of slices; None: all.
      poll_interval: Seconds between two probes.
      timeout: Seconds; None: no limit.
      slice_to_devices: The devices of each slice; None: of `jax.devices()`.

    Raises:
      TimeoutError: The slices did not compute in time.
    """
    devices = group_by_slice(jax.devices()) if slice_to_devices is None else slice_to_devices
    want = len(devices) if slice_count is None else check_int("slice_count", slice_count, low=0)
    check_seconds("poll_interval", poll_interval)
    began = time.monotonic()
    with _asking(devices, _ASK_S) as probes:
        while True:
            looked = time.monotonic()
            found = frozenset(probes.ask(devices).good)
            if len(found) >= want:
                return found
            pause = max(0.0, looked + poll_interval - time.monotonic())
            if timeout is not None and time.monotonic() + pause - began >= timeout:
                raise TimeoutError(f"{len(found)} of {want} slices compute after {timeout:g} s")
            time.sleep(pause)


@contextlib.contextmanager
def _asking(devices: Mapping[int, Sequence[jax.Device]], timeout: float) -> Iterator[Probes]:
    with Waiters("sps-elastic-ask") as waiters:
        yield Probes(devices, timeout, waiters, add_one_everywhere)


def is_error_due_to_slice_down(error: Exception) -> bool:
    """Returns whether an error may be caused by a slice, from its text.

    As in pathwaysutils, INTERNAL, DEADLINE_EXCEEDED and NOT_FOUND may be; `Manager` also probes the
    slices.
    """
    if not isinstance(error, jax.errors.JaxRuntimeError):
        return False
    return classify(str(error)).verdict in {Verdict.SLICE, Verdict.UNCLEAR}
