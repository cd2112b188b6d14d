"""A switch between hosts whose links lose, delay, limit or reset; one thread."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import os
import random
import select
import threading
import time
from collections.abc import Mapping
from typing import Self

from harness.network.resets import resets_for

__all__ = ["CLEAR", "Condition", "Switch"]

_PACKET_BYTES = 65_536
#: Seconds of packets that wait for a limited link; more are lost, as in a router's queue.
_QUEUE_S = 0.4
_ADDRESS_AT = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Condition:
    """What happens to packets from one host to another.

    Attributes:
      loss: The part of the packets that is lost at random, from 0 to 1.
      delay_s: Seconds that each packet takes.
      bytes_per_s: The rate of the link; 0: not limited.
      resets: No packet passes, and a TCP connection with a packet here is reset at both ends.
    """

    loss: float = 0.0
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    resets: bool = False


CLEAR = Condition()


class Switch:
    """Passes packets between the tun devices of hosts; use as a context manager.

    Args:
      devices: The file descriptor of each host's device, by its IPv4 address; closed at the end.
      seed: Of random loss.
    """

    def __init__(self, devices: Mapping[bytes, int], *, seed: int = 0) -> None:
        self._devices = dict(devices)
        self._addresses = {fd: address for address, fd in self._devices.items()}
        self._draw = random.Random(seed)
        self._conditions: dict[tuple[bytes, bytes], Condition] = {}
        self._free_at: dict[tuple[bytes, bytes], float] = {}
        self._late: list[tuple[float, int, bytes]] = []
        self._numbers = itertools.count()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="switch")

    def __enter__(self) -> Self:
        """Starts to pass packets."""
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Ends, and closes the devices."""
        os.close(self._wake_write)
        self._thread.join()
        for fd in (self._wake_read, *self._addresses):
            os.close(fd)

    def set(self, source: bytes, target: bytes, condition: Condition) -> None:
        """Sets the condition of one direction of a link."""
        self._conditions[source, target] = condition

    def _run(self) -> None:
        poll = select.epoll()
        with contextlib.closing(poll):
            for fd in (self._wake_read, *self._addresses):
                poll.register(fd, select.EPOLLIN)
            while True:
                wait_s = max(0.0, self._late[0][0] - time.monotonic()) if self._late else -1
                for fd, _ in poll.poll(wait_s):
                    if fd == self._wake_read:
                        return
                    with contextlib.suppress(BlockingIOError):
                        self._pass(os.read(fd, _PACKET_BYTES))
                while self._late and self._late[0][0] <= time.monotonic():
                    self._deliver(heapq.heappop(self._late)[2])

    def _pass(self, packet: bytes) -> None:
        if packet[0] >> 4 != 4:  # not IPv4
            return
        link = packet[12:16], packet[_ADDRESS_AT : _ADDRESS_AT + 4]
        condition = self._conditions.get(link, CLEAR)
        if condition.resets:
            for reset in resets_for(packet):
                if reset:
                    self._deliver(reset)
            return
        if condition.loss and self._draw.random() < condition.loss:
            return
        now = time.monotonic()
        at = now + condition.delay_s
        if condition.bytes_per_s:
            free_at = max(now, self._free_at.get(link, now))
            if free_at > now + _QUEUE_S:
                return
            self._free_at[link] = free_at + len(packet) / condition.bytes_per_s
            at = self._free_at[link] + condition.delay_s
        if at > now:
            heapq.heappush(self._late, (at, next(self._numbers), packet))
        else:
            self._deliver(packet)

    def _deliver(self, packet: bytes) -> None:
        fd = self._devices.get(packet[_ADDRESS_AT : _ADDRESS_AT + 4])
        if fd is not None:
            # A device whose queue is full loses packets, as a network does.
            with contextlib.suppress(OSError):
                os.write(fd, packet)
