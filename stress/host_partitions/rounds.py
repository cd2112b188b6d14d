"""One partition: what was before it, and what must be after it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.deadlines import deadline, wait_until
from harness.network.switch import CLEAR
from harness.proxy.raw import Failed, single, split
from stress.host_partitions.service import DEVICES, EACH_S, PartitionError, Service

__all__ = ["Round"]

_DATA_LOSS = 15


class Round:
    """One partition: what was before it, and what must be after it.

    Args:
      service: The service, without a partition.
      draw: Of the values.
    """

    def __init__(self, service: Service, draw: random.Random) -> None:
        self._service = service
        self._client = service.client
        self._draw = draw
        self._before = service.wait_until_placed()
        self._last = max((event.sequence for event in service.decisions(0)), default=0)
        self._values = [self._new_values(4) for _ in DEVICES]
        self._arrays = [
            self._client.put(values, single(device))
            for values, device in zip(self._values, DEVICES, strict=True)
        ]
        self._check_sum()
        self._check_slices(range(len(DEVICES)))

    def between_hosts(self) -> dict[str, Any]:
        """Cuts the link between the hosts of both slices."""
        one, other = (self._service.worker_of(placed) for placed in self._before.values())
        self._service.cut(one, other)
        began = time.monotonic()
        failing = self._sum(self._new_values(8))
        # Meanwhile the slices compute.
        self._check_slices(range(len(DEVICES)))
        self._check_failure(failing)
        failed_s = time.monotonic() - began
        copy = self._client.begin(
            "copy_arrays", array_handles=[self._arrays[0]], device_ids=[DEVICES[1]]
        )
        copied = copy.result(deadline(EACH_S)).array_handles[0]
        self._check_failure(copied)
        self._check_slices(range(len(DEVICES)))
        self._service.cut(one, other, CLEAR)
        healed = time.monotonic()
        self._check_sum()
        if (now := self._service.wait_until_placed()) != self._before:
            raise PartitionError(f"the tenant holds {now}, not {self._before}")
        if lost := self._lost_slices():
            raise PartitionError(f"lost: {lost}")
        return {"failed_s": failed_s, "runs_again_s": time.monotonic() - healed}

    def around_a_host(self, other: str) -> dict[str, Any]:
        """Cuts the link between a slice's host and the proxy or the resource manager."""
        index = self._draw.randrange(len(DEVICES))
        lost, kept = self._before[index], self._before[1 - index]
        self._service.cut(other, self._service.worker_of(lost))
        began = time.monotonic()
        if other == "proxy":
            failing = self._sum(self._new_values(8))
            self._check_slices([1 - index])
            self._check_failure(failing, of_loss=True)
        else:
            # Programs go on until the resource manager has given the host up.
            self._check_sum()
        wait_until(
            "the tenant has another slice",
            lambda: self._service.placed().get(index, lost) != lost,
            EACH_S,
        )
        lost_s = time.monotonic() - began
        self._check_failure(self._arrays[index], of_loss=True)
        self._check_slices([1 - index])
        self._arrays[index] = self._client.put(self._values[index], single(DEVICES[index]))
        self._check_slices([index])
        back_s = time.monotonic() - began
        self._check_sum()
        self._service.cut(other, self._service.worker_of(lost), CLEAR)
        if (now := self._service.wait_until_placed())[1 - index] != kept:
            raise PartitionError(f"the tenant holds {now}, and not {kept}")
        self._check_slices(range(len(DEVICES)))
        if (found := self._lost_slices()) != [lost.slice_id]:
            raise PartitionError(f"lost: {found}, not {lost.slice_id} once")
        return {"lost_s": lost_s, "back_s": back_s}

    # ---- what must be

    def _new_values(self, count: int) -> np.ndarray:
        return np.array([self._draw.randrange(1000) for _ in range(count)], np.float32)

    def _sum(self, values: np.ndarray) -> int:
        (result,) = self._client.execute(
            self._service.sum, [self._client.put(values, split(DEVICES))]
        )
        return result

    def _check_sum(self) -> None:
        values = self._new_values(8)
        _check_equal(self._client.fetch(self._sum(values)), values + values.sum())

    def _check_slices(self, indices: Sequence[int]) -> None:
        for index in indices:
            _check_equal(self._client.fetch(self._arrays[index]), self._values[index])
            (doubled,) = self._client.execute(self._service.double[index], [self._arrays[index]])
            _check_equal(self._client.fetch(doubled), 2 * self._values[index])

    def _check_failure(self, array: int, *, of_loss: bool = False) -> None:
        try:
            self._client.begin_ready(array).result(deadline(EACH_S))
        except Failed as failed:
            if (failed.code == _DATA_LOSS) is of_loss:
                return
            raise PartitionError(f"failed with {failed}") from failed
        raise PartitionError("what spans the partition has not failed")

    def _lost_slices(self) -> list[str]:
        """Returns the slices that the resource manager has taken from the tenant."""
        events = self._service.decisions(self._last)
        return [event.slice for event in events if event.kind == "slice.unplaced"]


def _check_equal(found: np.ndarray, wanted: np.ndarray) -> None:
    if not np.array_equal(found, wanted):
        raise PartitionError(f"{found}, not {wanted}")
