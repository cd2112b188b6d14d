"""Workers and tenants of one resource manager, with the code of the real ones, without any device.

A tenant is the proxy's own link to the manager with the proxy's own table of slices; only the
computing part is missing. Links and sessions reconnect by themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import random
import uuid
from collections.abc import Callable
from typing import Any, cast

import grpc

from harness.carriers import hello
from harness.processes import DEADLINE_S, KIND, VERSIONS
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.servers.proxy.execution.virtual_slices import SliceTable
from shared_pathways_service.servers.proxy.exits import Ending
from shared_pathways_service.servers.proxy.rm_link import ResourceManagerLink
from shared_pathways_service.servers.worker.executor_process import executor_command
from shared_pathways_service.servers.worker.manager_session import Session
from stress.manager_kills.book import Hold, TenantMessage

__all__ = ["Crowd", "Tenant"]

#: Seconds that an operator's call may take; a manager that is away is not waited for.
_CALL_S = 5.0
#: Some tenants have a high priority, and some a still higher one, so that preemption continues.
_PRIORITIES = range(100)
#: Of the slices, how many are cordoned or drained at the same time at most.
_MARKED = 2


class _NoExecutor:
    """Does not compute."""

    def close(self) -> None:
        """Ends at once."""


class _Link(ResourceManagerLink):
    """The proxy's link, which records each message before it processes it."""

    note: Callable[[pb.TenantUpdate], None]

    def on_message(self, message: pb.TenantUpdate) -> None:
        """Notes it."""
        self.note(message)
        super().on_message(message)

    def join(self) -> None:
        """Waits for the link's end."""
        assert self._stream.join(DEADLINE_S)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """The request of a tenant."""

    slices: int = 1
    elastic: int = 0
    priority: int = 0
    queue_timeout_s: float | None = float("inf")


class Tenant:
    """A proxy that does not compute.

    Args:
      address: The manager's.
      name: The tenant's, which is unique, so that it has one incarnation.
      wish: Its request.
      messages: Receives all its messages.
    """

    def __init__(
        self, address: str, name: str, wish: Wish, messages: queue.SimpleQueue[TenantMessage]
    ) -> None:
        self.name = name
        self.incarnation = str(uuid.uuid4())
        self._messages = messages
        self._table = SliceTable([KIND] * wish.slices, cast(Any, lambda _epoch: _NoExecutor()))
        self._ending = Ending("")
        greeting = hello(
            name=name,
            incarnation=self.incarnation,
            virtual_slices=[KIND] * wish.slices,
            elastic_slices=wish.elastic,
            priority=wish.priority,
            queue_timeout_s=wish.queue_timeout_s,
            user=name,
            host="laptop",
            pid=1,
        )
        self._link = _Link(address, greeting, self._table, self._ending, None)
        self._link.note = self._note
        self._link.start()

    @property
    def refused(self) -> bool:
        """Whether the manager wants it no more."""
        return self._ending.decided

    @property
    def holds(self) -> set[Hold]:
        """The slices that it believes it holds."""
        return {
            Hold(self.name, epoch.index, epoch.slice_id, epoch.generation)
            for epoch in self._table.current()
            if epoch.generation is not None
        }

    def close(self) -> None:
        """Lets go, as a proxy that ends does."""
        self._link.close("done")
        self._link.join()

    def _note(self, update: pb.TenantUpdate) -> None:
        what, hold, reason = str(update.WhichOneof("update")), None, ""
        if what == "placement":
            placement = update.placement
            is_placed = placement.state == pb.Placement.PLACED
            what, reason = "placed" if is_placed else "unplaced", placement.reason
            hold = Hold(
                self.name, placement.virtual_index, placement.slice_id, placement.generation
            )
        elif what == "refused":
            reason = update.refused.message
        self._messages.put(TenantMessage(tenant=self.name, what=what, hold=hold, reason=reason))


class Crowd:
    """Workers of all slices, and a number of tenants, of which some end and others start.

    Args:
      address: The manager's.
      stub: An operator's.
      slices: How many there are; a worker for each is started.
      tenants: How many there are at a time.
      draw: What happens is drawn from it.
    """

    def __init__(
        self,
        address: str,
        stub: pb_grpc.ResourceManagerStub,
        *,
        slices: int,
        tenants: int,
        draw: random.Random,
    ) -> None:
        self.messages: queue.SimpleQueue[TenantMessage] = queue.SimpleQueue()
        self.tenants: dict[str, Tenant] = {}
        #: Tenants that ended, in order, until their end was processed.
        self.left: queue.SimpleQueue[str] = queue.SimpleQueue()
        #: The mark of a slice that the manager has confirmed; None: unconfirmed.
        self.marks: dict[str, str | None] = {}
        self.started = 0
        self._address = address
        self._stub = stub
        self._count = tenants
        self._draw = draw
        self._workers: dict[str, Session] = {}
        self._unreleased: dict[str, str] = {}
        for number in range(slices):
            self._start_worker(f"slice-{number}")
        self._fill()

    def close(self) -> None:
        """Ends all of them."""
        for tenant in self.tenants.values():
            tenant.close()
        for worker in self._workers.values():
            worker.close()

    def present(self) -> list[Tenant]:
        """Returns the tenants that the manager should know."""
        return [tenant for tenant in self.tenants.values() if not tenant.refused]

    def empty(self) -> None:
        """Ends all tenants, and starts no others."""
        for tenant in list(self.tenants.values()):
            self._let_go(tenant)

    def act(self) -> None:
        """Does one thing that people, programs or machines do."""
        what = self._draw.random()
        if what < 0.75:
            everybody = list(self.tenants.values())
            holders = [tenant for tenant in everybody if tenant.holds]
            self._let_go(self._draw.choice(holders if holders and what < 0.4 else everybody))
        elif what < 0.9:
            self._mark(self._draw.choice(list(self._workers)))
        else:
            slice_id = self._draw.choice(list(self._workers))
            self._workers.pop(slice_id).close()
            self._start_worker(slice_id)
        for tenant in [one for one in self.tenants.values() if one.refused]:
            self._let_go(tenant)
        self.release()
        self._fill()

    def release(self) -> bool:
        """Releases ended tenants, like their agents do; False: not all of them yet."""
        for name, incarnation in list(self._unreleased.items()):
            request = pb.ReleaseTenantRequest(tenant=name, incarnation=incarnation, reason="gone")
            try:
                self._stub.ReleaseTenant(request, timeout=_CALL_S)
            except grpc.RpcError:
                return False
            del self._unreleased[name]
        return True

    def _let_go(self, tenant: Tenant) -> None:
        self.left.put(tenant.name)
        tenant.close()
        del self.tenants[tenant.name]
        self._unreleased[tenant.name] = tenant.incarnation

    def _fill(self) -> None:
        while len(self.tenants) < self._count:
            self.started += 1
            name = f"t{self.started}"
            self.tenants[name] = Tenant(self._address, name, self._wish(), self.messages)

    def _wish(self) -> Wish:
        slices = self._draw.choice((1, 1, 1, 2, 2, 3))
        waits = self._draw.random()
        return Wish(
            slices=slices,
            elastic=self._draw.randrange(slices),
            priority=self._draw.choice(_PRIORITIES),
            queue_timeout_s=None if waits < 0.05 else 1.0 if waits < 0.2 else float("inf"),
        )

    def _start_worker(self, slice_id: str) -> None:
        hello = pb.WorkerHello(
            versions=VERSIONS,
            slice_id=slice_id,
            instance_type=KIND,
            host_index=0,
            host_count=1,
            incarnation=str(uuid.uuid4()),
            address="unix:/nowhere",
            host="machine",
            pid=1,
        )
        self._workers[slice_id] = Session(
            self._address,
            hello,
            None,
            beat_interval_s=10.0,
            executor_command=executor_command(0, "localhost"),
            executor_host="localhost",
            on_welcome=lambda: None,
            on_refused=lambda: None,
        )

    def _mark(self, slice_id: str) -> None:
        marked = [name for name, mark in self.marks.items() if mark != ""]
        if len(marked) >= _MARKED:
            slice_id = self._draw.choice(marked)
        self.marks[slice_id], before = None, self.marks.get(slice_id, "")
        with contextlib.suppress(grpc.RpcError):
            if before != "":
                uncordon = pb.UncordonSliceRequest(slice=slice_id)
                self._stub.UncordonSlice(uncordon, timeout=_CALL_S)
                self.marks[slice_id] = ""
            elif self._draw.random() < 0.5:
                self._stub.CordonSlice(pb.CordonSliceRequest(slice=slice_id), timeout=_CALL_S)
                self.marks[slice_id] = "cordoned"
            else:
                self._stub.DrainSlice(pb.DrainSliceRequest(slice=slice_id), timeout=_CALL_S)
                self.marks[slice_id] = "draining"
