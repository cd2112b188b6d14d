"""Injects faults into a running embedded service: kills or stops the workers of slices."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, Final, Self

import grpc

from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.protocol import resource_manager_pb2 as rm_pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as rm_grpc
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.protocol import supervisor_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer, read_token
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.state_file import kill_children, read_state
from shared_pathways_service.runtime.settings import Settings, private_directory

__all__ = ["EmbeddedSlices"]

_ANSWER_S: Final = 30.0


class EmbeddedSlices:
    """The slices of one tenant of this user's embedded service, as a `World`.

    Slices are named by the tenant's own (virtual) indices. A fault hits the physical slice on which
    the virtual slice is placed at that moment, or was last seen placed: a slice that is already
    down is kept down. If the service has a spare, the tenant gets it meanwhile.

    A slice that hangs continues to compute, because the proxy computes: only its workers are
    stopped, and after the resource manager's ``--hung_after_s`` (by default 30 s) without a
    heartbeat the slice counts as lost. A shorter hang has no effect.

    The creator closes it, which releases all slices that it holds down.

    Args:
      tenant: The connection's `proxy_job_name`.
      settings: The settings of the service; by default this user's.

    Raises:
      ServiceNotFound: No service runs there.
      AccessDenied: Its directory is not private to this user.
    """

    def __init__(self, tenant: str, settings: Settings | None = None) -> None:
        settings = settings or Settings.load()
        if not settings.runtime_dir.exists():
            raise _no_service(settings)
        self._paths = RuntimePaths(private_directory(settings.runtime_dir, "SPS_RUNTIME_DIR"))
        state = read_state(self._paths)
        if state is None or not state.supervisor.is_alive():
            raise _no_service(settings)
        self._tenant = tenant
        self._address = state.address
        self._lock = threading.Lock()
        self._last_seen: dict[int, str] = {}
        self._held: set[str] = set()
        token = read_token(str(self._paths.token), field="service.token")
        self._call: dict[str, Any] = {"metadata": bearer(token), "timeout": _ANSWER_S}
        with contextlib.ExitStack() as stack:
            channels = [
                stack.enter_context(grpc.insecure_channel(address))
                for address in (state.address, f"unix:{self._paths.resource_manager_socket}")
            ]
            self._supervisor = pb_grpc.SupervisorStub(channels[0])
            self._manager = rm_grpc.ResourceManagerStub(channels[1])
            self._look_at_all()
            self._stack = stack.pop_all()

    # ---- as a World

    def kill(self, index: int, down_for: float) -> None:
        """Kills all workers of a slice; new ones are started after `down_for` seconds."""
        self._disturb(index, pb.DisturbSliceRequest.KILL, down_for)

    def hang(self, index: int, for_s: float) -> None:
        """Stops all workers of a slice, and so their heartbeats, for `for_s` seconds."""
        self._disturb(index, pb.DisturbSliceRequest.HANG, for_s)

    def revive(self, index: int) -> None:
        """Releases a slice that is held down: its workers start or continue."""
        self._disturb(index, pb.DisturbSliceRequest.LET_GO, 0.0)

    def look(self, slices: Sequence[int]) -> None:
        """Does nothing: the proxy itself raises for lost slices."""

    # ---- more

    def kill_proxy(self) -> None:
        """Kills the tenant's proxy, whose memory is lost.

        Raises:
          ServiceNotFound: The proxy is not running.
        """
        answer = self._ask(self._supervisor.GetProcesses, pb.GetProcessesRequest())
        pids = {p.pid for p in answer.processes if p.role == "proxy" and p.name == self._tenant}
        if not kill_children(self._paths, pids):
            raise ServiceNotFound(f"the proxy {self._tenant} runs no more")

    def physical(self, index: int) -> str:
        """Returns the physical slice of a virtual slice: the current or the last one.

        Raises:
          ServiceNotFound: The tenant has no such slice, or it was not placed yet.
        """
        with self._lock:
            self._look_at_all()
            if index not in self._last_seen:
                raise ServiceNotFound(f"{self._tenant} has no slice {index} that was placed")
            return self._last_seen[index]

    def close(self) -> None:
        """Releases all slices that are held down, if the service still runs."""
        for slice_id in sorted(self._held):
            request = pb.DisturbSliceRequest(slice=slice_id, kind=pb.DisturbSliceRequest.LET_GO)
            with contextlib.suppress(grpc.RpcError):
                self._supervisor.DisturbSlice(request, **self._call)
        self._held.clear()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # ---- inside

    def _disturb(
        self, index: int, kind: pb.DisturbSliceRequest.Kind.ValueType, hold_s: float
    ) -> None:
        slice_id = self.physical(index)
        request = pb.DisturbSliceRequest(slice=slice_id, kind=kind, hold_s=hold_s)
        self._held.add(slice_id)
        self._ask(self._supervisor.DisturbSlice, request)

    def _look_at_all(self) -> None:
        status = self._ask(self._manager.GetStatus, rm_pb.GetStatusRequest())
        for tenant in status.tenants:
            if tenant.name == self._tenant:
                self._last_seen.update({s.index: s.slice_id for s in tenant.slices if s.slice_id})

    def _ask(self, method: Any, request: Any) -> Any:
        # The resource manager may be unavailable for a moment.
        try:
            return method(request, wait_for_ready=True, **self._call)
        except grpc.RpcError as error:
            raise error_of(error, service="the embedded service", address=self._address) from error


def _no_service(settings: Settings) -> ServiceNotFound:
    return ServiceNotFound(f"you have no running service in {settings.runtime_dir}")
