"""Accounts for the memory of devices and of the host, against limits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from shared_pathways_service.events.proxy import MemoryNearLimit
from shared_pathways_service.servers.devices.status_errors import Code, StatusError

__all__ = ["Charge", "DeviceMemory", "HostCharge", "HostMemory"]

#: The parts of the limit above which its use is reported, and below which it is not near any more.
_NEAR, _FAR = 0.9, 0.8


class DeviceMemory:
    """Bytes held on each device, against a limit per device. Thread-safe.

    Without a limit, or with 0, nothing is counted.

    Attributes:
      on_near_limit: Called when a device comes near the limit, on the thread of the request.
    """

    def __init__(self, num_devices: int, limit: int) -> None:
        self.limit = limit
        self.on_near_limit: Callable[[MemoryNearLimit], object] = lambda _event: None
        self._is_near = False
        self._named = "--device_memory_limit_bytes"
        self._held = [0] * num_devices
        # Re-entrant: the garbage collector may end a charge while another is made.
        self._lock = threading.RLock()

    def lower(self, limit: int, name: str) -> None:
        """Lowers the limit of this name, if the current one is higher; held memory stays."""
        with self._lock:
            if not self.limit or limit < self.limit:
                self.limit, self._named = limit, name

    def charge(self, device_ids: Sequence[int], nbytes: int, what: str) -> Charge | None:
        """Charges memory on each device, or none with a StatusError that names the purpose.

        The charge ends with the last reference to it; it is None without a limit.
        """
        if not self.limit:
            return None
        with self._lock:
            for device_id in device_ids:
                held = self._held[device_id]
                if held + nbytes > self.limit:
                    raise StatusError(
                        Code.RESOURCE_EXHAUSTED,
                        f"{what} needs {nbytes} bytes on device {device_id}, whose limit "
                        f"({self._named}) is {self.limit} bytes, of which {held} "
                        "are held",
                    )
            for device_id in device_ids:
                self._held[device_id] += nbytes
            near = None if self._is_near else self._device_near_limit(device_ids)
        charge = Charge(self, tuple(device_ids), nbytes)
        if near is not None:
            # Without the lock: another thread may free memory while it holds the listener's lock.
            self.on_near_limit(near)
        return charge

    def _device_near_limit(self, device_ids: Sequence[int]) -> MemoryNearLimit | None:
        """Returns the event of the first device that is near the limit."""
        for device_id in device_ids:
            held, limit = self._held[device_id], self.limit
            if held > _NEAR * limit:
                self._is_near = True
                return MemoryNearLimit(
                    reason=f"device {device_id} has {held} of {limit} bytes in use",
                    device=device_id,
                    used_bytes=held,
                    limit_bytes=limit,
                )
        return None

    def held(self, device_id: int) -> int:
        """Returns the bytes held on a device."""
        return self._held[device_id]

    def give_back(self, device_ids: Sequence[int], nbytes: int) -> None:
        """Subtracts bytes from the held ones."""
        with self._lock:
            for device_id in device_ids:
                self._held[device_id] -= nbytes
            if self._is_near and max(self._held) < _FAR * self.limit:
                self._is_near = False


class Charge:
    """Charged memory, held while this object lives."""

    __slots__ = ("_device_ids", "_memory", "_nbytes")

    def __init__(self, memory: DeviceMemory, device_ids: tuple[int, ...], nbytes: int) -> None:
        self._memory = memory
        self._device_ids = device_ids
        self._nbytes = nbytes

    def split(self, nbytes: int) -> Charge:
        """Splits a part off as a charge of its own."""
        self._nbytes -= nbytes
        return Charge(self._memory, self._device_ids, nbytes)

    def __del__(self) -> None:
        self._memory.give_back(self._device_ids, self._nbytes)


class HostMemory:
    """Bytes of host buffers of all sessions that arrive, wait or leave. Thread-safe.

    What becomes an array's memory counts as the devices', even if XLA uses the buffer as it is.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        # Re-entrant, as above.
        self._lock = threading.RLock()

    def charge(self, nbytes: int, what: str) -> HostCharge:
        """Charges memory until the last reference to the charge is dropped, or refuses it."""
        with self._lock:
            if self.limit and self.held + nbytes > self.limit:
                raise StatusError(
                    Code.RESOURCE_EXHAUSTED,
                    f"{what} needs {nbytes} bytes of the proxy's memory for host buffers, whose "
                    f"limit (--host_memory_limit_bytes) is {self.limit} bytes, of which "
                    f"{self.held} are held",
                )
            self.held += nbytes
        return HostCharge(self, nbytes)

    def give_back(self, nbytes: int) -> None:
        """Subtracts bytes from the held ones."""
        with self._lock:
            self.held -= nbytes


class HostCharge:
    """Charged memory of the host, held while this object lives."""

    __slots__ = ("_memory", "_nbytes")

    def __init__(self, memory: HostMemory, nbytes: int) -> None:
        self._memory = memory
        self._nbytes = nbytes

    def __del__(self) -> None:
        self._memory.give_back(self._nbytes)
