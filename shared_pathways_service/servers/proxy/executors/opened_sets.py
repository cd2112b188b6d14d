"""The clients that executors have opened: one for each set of slices, until it is broken."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, Protocol

from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
)
from shared_pathways_service.servers.proxy.executors.awaiting import first_error, result_of
from shared_pathways_service.servers.proxy.executors.executor_link import new_number
from shared_pathways_service.servers.proxy.executors.host_addresses import meeting_host
from shared_pathways_service.servers.xla.coordination import Coordinator

__all__ = ["Link", "OpenedSets"]

#: The most clients on an executor. Each has threads, a dozen on two processors.
_MOST_CLIENTS = 32

Slices = tuple[int, ...]


class Link(Protocol):
    """The stream to an executor."""

    address: str

    @property
    def lost(self) -> StatusError | None:
        """Why the executor is lost; None if it is not."""

    def ask(self, command: pb.ExecutorCommand) -> futures.Future[pb.ExecutorReport]:
        """Sends a command; the future gets its report, or a StatusError."""

    def free(self, kind: str, number: int) -> None:
        """Frees a number after all commands so far."""


Links = tuple[Link, ...]


class Service(Protocol):
    """A coordination service."""

    address: str

    def close(self) -> None:
        """Ends the service, once all its processes have ended."""


@dataclasses.dataclass(slots=True, eq=False)
class _Opened:
    number: int
    links: tuple[Link, ...]
    #: The executors of all devices when it was last used.
    used_with: Mapping[int, Link] | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Failed:
    opened: _Opened
    error: StatusError


class OpenedSets:
    """The client of each set of slices on its executors. Thread-safe.

    A set gets another client when one of its executors has been replaced, or when a program over
    several hosts has failed in its first one: Gloo closes its connections then, and XLA keeps them
    as long as the client. Clients of several hosts stay until their executors end. Of a client of
    one host, the memory is freed when the room is needed and nothing uses it.

    Args:
      collective_timeout_s: The seconds for which a host waits for others in a program.
      make_service: Makes a coordination service on a host for a number of processes.
    """

    def __init__(
        self,
        collective_timeout_s: int,
        make_service: Callable[[str, int], Service] = Coordinator,
    ) -> None:
        self._collective_timeout_s = collective_timeout_s
        self._make_service = make_service
        self._lock = threading.Lock()
        self._opened: dict[Slices, _Opened] = {}
        self._opening: dict[tuple[Slices, Links], futures.Future[int]] = {}
        # Not tried again: what is left of an attempt may still be under way on some hosts.
        self._failed: dict[Slices, _Failed] = {}
        self._users: weakref.WeakValueDictionary[Slices, Any] = weakref.WeakValueDictionary()
        self._clients_on: dict[Link, int] = {}
        self._services: list[tuple[Service, tuple[Link, ...]]] = []

    def use(self, slices: Slices, user: Any) -> None:
        """Keeps a set's client as long as its user exists."""
        with self._lock:
            self._users[slices] = user

    def number(self, slices: Slices, device_ids: Sequence[int], link_of: Mapping[int, Link]) -> int:
        """Returns the number of a set's client; opens it if there is none.

        Args:
          slices: The set.
          device_ids: Its devices.
          link_of: The executor of each device; another mapping once one is replaced.

        Raises:
          StatusError: DATA_LOSS if an executor of the set is lost, RESOURCE_EXHAUSTED if one has
            too many clients, or what else went wrong.
        """
        found = self._opened.get(slices)
        if found is not None and found.used_with is link_of:
            return found.number
        # What replaced executors have opened does not count.
        links = tuple(dict.fromkeys(link_of[i] for i in device_ids))
        if found is not None and found.links == links:
            found.used_with = link_of
            return found.number
        with self._lock:
            found = self._opened.get(slices)
            if found is not None and found.links == links:
                return found.number
            failed = self._failed.get(slices)
            if failed is not None and failed.opened.links == links:
                raise failed.error.copy()
            opening = self._opening.get((slices, links))
            is_first = opening is None
            if opening is None:
                opening = self._opening[slices, links] = futures.Future()
        if is_first:
            self._open_for_all(slices, _devices_on(device_ids, link_of), opening)
        # (All waits of the thread that opens it have deadlines.)
        return result_of(opening)

    def drop_broken(self, number: int) -> None:
        """Has the next user of a client's set open another one."""
        with self._lock:
            broken = [slices for slices, held in self._opened.items() if held.number == number]
            for slices in broken:
                del self._opened[slices]
        for slices in broken:
            glog("W", f"A program over the hosts of slices {slices} failed: they connect again")

    def _open_for_all(
        self,
        slices: Slices,
        devices_on: Mapping[Link, Sequence[int]],
        opening: futures.Future[int],
    ) -> None:
        links = tuple(devices_on)
        try:
            opened = self._open(slices, devices_on)
        except BaseException as error:  # noqa: BLE001 - all that wait raise it
            with self._lock:
                del self._opening[slices, links]
            opening.set_exception(from_exception(error).copy())
            return
        with self._lock:
            del self._opening[slices, links]
            self._opened[slices] = opened
        opening.set_result(opened.number)

    def _open(self, slices: Slices, devices_on: Mapping[Link, Sequence[int]]) -> _Opened:
        links = tuple(devices_on)
        # XLA numbers the devices of one host after the other.
        devices = [i for own in devices_on.values() for i in own]
        _check_lost(links)
        self.close_services()
        self._reserve(links)
        opened = _Opened(new_number(), links)
        address = ""
        if len(links) > 1:
            try:
                address = self._meet(opened)
            except BaseException:
                # (It is not open yet: only a thread that was started for it ends.)
                for link in links:
                    link.free("clients", opened.number)
                self._release(links)
                raise
        asked = [
            link.ask(
                pb.ExecutorCommand(
                    client=opened.number,
                    open=pb.OpenClient(
                        devices=devices,
                        own=own,
                        coordinator=address,
                        node=node,
                        nodes=len(links),
                        collective_timeout_s=self._collective_timeout_s,
                    ),
                )
            )
            for node, (link, own) in enumerate(devices_on.items())
        ]
        try:
            first_error(asked, timeouts.HOSTS_OPEN.s)
        except StatusError as error:
            self._give_up(slices, opened, error)
            raise
        return opened

    def _meet(self, opened: _Opened) -> str:
        """Waits until all hosts can open a client; returns where they find each other."""
        links = opened.links
        host = meeting_host([link.address for link in links])
        meet = pb.MeetHosts()
        first_error(
            [link.ask(pb.ExecutorCommand(client=opened.number, meet=meet)) for link in links],
            timeouts.HOSTS_MEET.s,
        )
        service = self._make_service(host, len(links))
        try:
            _check_lost(links)
        except StatusError:
            service.close()
            raise
        with self._lock:
            self._services.append((service, links))
        return service.address

    def _give_up(self, slices: Slices, opened: _Opened, error: StatusError) -> None:
        if len(opened.links) > 1:
            # (Their clients stay, and so does the service, until the executors end.)
            with self._lock:
                self._failed[slices] = _Failed(opened, error.copy())
            return
        opened.links[0].free("clients", opened.number)
        self._release(opened.links)

    def close_services(self) -> None:
        """Ends the services all of whose executors have ended; call it after losses."""
        with self._lock:
            unused = [entry for entry in self._services if all(link.lost for link in entry[1])]
            self._services = [entry for entry in self._services if entry not in unused]
            for link in [link for link in self._clients_on if link.lost is not None]:
                del self._clients_on[link]
        for service, _ in unused:
            service.close()

    # ---- the number of clients on an executor

    def _reserve(self, links: Sequence[Link]) -> None:
        with self._lock:
            if any(self._clients_on.get(link, 0) >= _MOST_CLIENTS for link in links):
                self._free_unused()
            for link in links:
                if self._clients_on.get(link, 0) >= _MOST_CLIENTS:
                    raise StatusError(
                        Code.RESOURCE_EXHAUSTED,
                        f"the executor at {link.address} has {_MOST_CLIENTS} clients, which is the "
                        "limit: one for each set of slices that arrays or programs lie on, and one "
                        "more for each failure of a program over several hosts; those of several "
                        "hosts stay until the executor ends",
                    )
            for link in links:
                self._clients_on[link] = self._clients_on.get(link, 0) + 1

    def _release(self, links: Sequence[Link]) -> None:
        with self._lock:
            self._count_down(links)

    def _count_down(self, links: Sequence[Link]) -> None:
        for link in links:
            if link in self._clients_on:
                self._clients_on[link] -= 1

    def _free_unused(self) -> None:
        unused = [
            slices
            for slices, opened in self._opened.items()
            if len(opened.links) == 1 and slices not in self._users
        ]
        for slices in unused:
            opened = self._opened.pop(slices)
            opened.links[0].free("clients", opened.number)
            self._count_down(opened.links)


def _devices_on(device_ids: Sequence[int], link_of: Mapping[int, Link]) -> dict[Link, list[int]]:
    """Returns the devices of each executor."""
    found: dict[Link, list[int]] = {}
    for i in device_ids:
        found.setdefault(link_of[i], []).append(i)
    return found


def _check_lost(links: Sequence[Link]) -> None:
    for link in links:
        if link.lost is not None:
            raise link.lost.copy()
