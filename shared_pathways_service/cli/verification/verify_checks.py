"""Runs the checks of `sps verify` in order."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from shared_pathways_service.api.checks import Outcome as DoctorOutcome
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cli.verification.link import CuttableLink
from shared_pathways_service.cli.verification.results import Result, SkippedError, result_of
from shared_pathways_service.cli.verification.service_state import ServiceView
from shared_pathways_service.cli.verification.tenant import Tenant
from shared_pathways_service.errors import SharedPathwaysError, SlicesTaken

__all__ = ["CHECKS", "Verification"]

_MIB = 1 << 20
#: Attempts of a request that must wait or be refused, as it may be granted by chance.
_TRIES = 3


def _granted() -> SkippedError:
    """Returns the error for requests that were granted although too few slices were free."""
    return SkippedError(
        f"{_TRIES} requests for one slice more than was free were granted, because other tenants "
        "left meanwhile; they were ended at once",
        "repeat the check when fewer tenants come and go",
    )


class Verification:
    """One verification of one service: a context manager that ends all its tenants.

    Args:
      service: The service.
      request: A request of one tenant with these arguments.
      arguments: Arguments of connect() for JSON, without slices and name.
      kind: Instance type of the slices.
      count: The number of slices to use, at least 1.
      timeout_s: Seconds for each step.
      start_tenant: Starts a tenant, as `Tenant` does.
    """

    def __init__(
        self,
        service: ServiceView,
        request: SessionRequest,
        arguments: Mapping[str, Any],
        *,
        kind: str,
        count: int,
        timeout_s: float,
        start_tenant: Callable[..., Tenant] = Tenant,
    ) -> None:
        self.count = count
        self._start_tenant = start_tenant
        self._service = service
        self._request = request
        self._arguments = arguments
        self._kind = kind
        self._timeout_s = timeout_s
        self._prefix = f"verify-{secrets.token_hex(3)}"
        self._first: Tenant | None = None
        self._connectable = False
        self._tenants: list[Tenant] = []
        self._undo = contextlib.ExitStack()
        self._directory = Path()

    def __enter__(self) -> Self:
        directory = tempfile.TemporaryDirectory(prefix="sps-verify-")
        self._directory = Path(self._undo.enter_context(directory))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def results(self, begin: Callable[[str], object]) -> Iterator[Result]:
        """Runs all checks, one after the other.

        Args:
          begin: Called with the name of each check before it starts.
        """
        for name, look in CHECKS.items():
            begin(name)
            began, before = time.monotonic(), len(self._tenants)
            result = result_of(name, functools.partial(look, self), _LOOK_AT[name])
            self._end_all_but_first(self._tenants[before:])
            yield dataclasses.replace(result, seconds=time.monotonic() - began)

    # ---- checks

    def preflight(self) -> str:
        """Runs the checks of `sps doctor`."""
        checks = self._service.checks(self._request, self._timeout_s)
        for check in checks:
            if check.outcome is DoctorOutcome.FAILED:
                raise SharedPathwaysError(f"{check.name}: {check.found}", hint=check.fix)
        return f"{len(checks)} checks of `sps doctor` passed"

    def connect(self) -> str:
        """Connects a tenant with all the slices."""
        tenant = self._tenant(self.count)
        message = tenant.expect("connected", self._timeout_s)
        self._first, self._connectable = tenant, True
        if message["slices"] != self.count:
            raise SharedPathwaysError(
                f"{message['slices']} slices were placed, {self.count} were requested"
            )
        slices = f"{message['slices']} x {self._kind}"
        return f"{slices}, {message['chips']} chips in {message['seconds']:.1f} s"

    def every_chip(self) -> str:
        """Computes on each chip separately."""
        answer = self._ask(self._tenant_of_all(), "every chip")
        if answer["wrong"]:
            raise SharedPathwaysError(f"wrong results on {', '.join(answer['wrong'])}")
        return f"{answer['chips']} chips computed the same results as numpy"

    def all_slices(self) -> str:
        """Computes over all slices at once."""
        answer = self._ask(self._tenant_of_all(), "all slices")
        if not answer["right"]:
            raise SharedPathwaysError(f"wrong result over {answer['chips']} chips")
        where = f"{answer['slices']} slices, {answer['chips']} chips"
        return f"one computation over {where} had the same result as numpy"

    def transfer(self) -> str:
        """Measures transfers and round trips."""
        answer = self._ask(self._tenant_of_all(), "transfer")
        if not answer["right"]:
            raise SharedPathwaysError("an array was changed by the transfer")
        return (
            f"{answer['to_device_bytes_per_s'] / _MIB:,.0f} MiB/s up, "
            f"{answer['from_device_bytes_per_s'] / _MIB:,.0f} MiB/s down, "
            f"round trip {answer['round_trip_s'] * 1000:.1f} ms"
        )

    def refusal(self) -> str:
        """Requests one slice more than is free, and must be refused."""
        self._tenant_of_all()
        for _ in range(_TRIES):
            wanted = self._one_more_than_free()
            tenant = self._tenant(wanted)
            try:
                error = tenant.refusal(self._timeout_s)
            finally:
                tenant.close()
            if error is None:
                self._service.wait_until_gone({tenant.name}, self._timeout_s)
            elif isinstance(error, SlicesTaken):
                return f"a request for {wanted} more was refused: {error.message}"
            else:
                raise error
        raise _granted()

    def queue(self) -> str:
        """Queues for slices that the first tenant holds, and gets them when it leaves."""
        first = self._tenant_of_all()
        for _ in range(_TRIES):
            wanted = self._one_more_than_free()
            tenant = self._tenant(wanted, queue_timeout=self._timeout_s)
            try:
                if not tenant.waits_in_queue(self._timeout_s):
                    continue
                if wanted > self.count:
                    return f"a request for {wanted} more waited in the queue and was ended"
                self._leave(first)
                tenant.expect("connected", self._timeout_s)
                self._ask(tenant, "all slices")
                return f"a request for {wanted} more waited, and ran after the first tenant left"
            finally:
                tenant.close()
                self._service.wait_until_gone({tenant.name}, self._timeout_s)
        raise _granted()

    def second_tenant(self) -> str:
        """Runs computations of two tenants concurrently."""
        self._check_connectable()
        if self.count < 2:
            raise SkippedError("needs two slices", f"--slices {self._kind}=2")
        self._leave(self._first)
        first, second = self._tenant(1), self._tenant(self.count - 1)
        for tenant in (first, second):
            tenant.expect("connected", self._timeout_s)
        for tenant in (first, second):
            tenant.order("every chip")
        for tenant in (first, second):
            answer = tenant.expect("answer", self._timeout_s)
            if wrong := ", ".join(answer["wrong"]):
                raise SharedPathwaysError(f"{tenant.name}: wrong results on {wrong}")
        self._first = first
        return f"two tenants with 1 and {self.count - 1} slices computed concurrently"

    def killed_client(self) -> str:
        """Kills a client; its proxy must disappear."""
        tenant = self._one_connected()
        began = time.monotonic()
        tenant.kill()
        self._first = None
        self._service.wait_until_gone({tenant.name}, self._timeout_s)
        return f"everything was deleted {time.monotonic() - began:.1f} s after the kill"

    def cut_tunnel(self) -> str:
        """Cuts connections to the API server: a resumable link goes on, a plain one fails."""
        if not self._service.reader.has_tunnel:
            return "no tunnel: proxies of the embedded service listen on private sockets"
        self._check_connectable()
        self._leave(self._first)
        return "; ".join(self._cut_one(link) for link in ("resumable", "plain"))

    def _cut_one(self, link: str) -> str:
        http_proxy = CuttableLink()
        try:
            tenant = self._tenant(1, environment=http_proxy.environment, link=link)
            is_resumable = tenant.connects_resumably(self._timeout_s)
            self._ask(tenant, "work on")
            if not (cut := http_proxy.cut()):
                raise SkippedError(
                    "the client's connections do not go through an HTTP proxy of this machine",
                    "try a context without proxy-url",
                )
            tenant.order("work on")
            if is_resumable:
                tenant.expect("answer", self._timeout_s)
                came = "the client went on"
            else:
                came = f"the client got the error: {tenant.failure(self._timeout_s).message}"
            tenant.close()
            self._service.wait_until_gone({tenant.name}, self._timeout_s)
        finally:
            http_proxy.close()
        return f"{link}: {cut} connections were cut, and {came}"

    def teardown(self) -> str:
        """Ends the remaining tenants, and checks that nothing is left of any."""
        self._undo.close()
        self._first = None
        names = {tenant.name for tenant in self._tenants}
        self._service.wait_until_gone(names, self._timeout_s)
        return f"nothing is left of {len(names)} connections"

    # ---- inside

    def _tenant(
        self, count: int, *, environment: Mapping[str, str | None] | None = None, **more: object
    ) -> Tenant:
        name = f"{self._prefix}-{len(self._tenants)}"
        more["expected_tpu_instances"] = {self._kind: count}
        tenant = self._start_tenant(
            name,
            {**self._arguments, **more},
            log=self._directory / f"{name}.log",
            environment=environment,
        )
        self._tenants.append(tenant)
        self._undo.callback(tenant.close)
        return tenant

    def _end_all_but_first(self, tenants: Iterable[Tenant]) -> None:
        """Ends the tenants of a check, except the one that the next checks take over."""
        own = [tenant for tenant in tenants if tenant is not self._first]
        with contextlib.ExitStack() as ends:
            for tenant in own:
                ends.callback(tenant.close)
        if own:
            # A tenant that stays is reported by "teardown".
            with contextlib.suppress(SharedPathwaysError):
                self._service.wait_until_gone({tenant.name for tenant in own}, self._timeout_s)

    def _tenant_of_all(self) -> Tenant:
        if self._first is None:
            raise SkippedError("the first tenant is not connected")
        return self._first

    def _check_connectable(self) -> None:
        if not self._connectable:
            raise SkippedError("the first tenant could not connect")

    def _one_connected(self) -> Tenant:
        self._check_connectable()
        if self._first is None:
            tenant = self._tenant(1)
            tenant.expect("connected", self._timeout_s)
            self._first = tenant
        return self._first

    def _ask(self, tenant: Tenant, order: str) -> dict[str, Any]:
        tenant.order(order)
        return tenant.expect("answer", self._timeout_s)

    def _one_more_than_free(self) -> int:
        """Returns a number of slices that cannot be granted beside those of the first tenant."""
        _, free = self._service.slices().get(self._kind, (0, 0))
        return free + 1

    def _leave(self, tenant: Tenant | None) -> None:
        if tenant is not None:
            tenant.close()
            self._first = None
            self._service.wait_until_gone({tenant.name}, self._timeout_s)


#: The checks by name, in order: later ones use the state that earlier ones left.
CHECKS: Mapping[str, Callable[[Verification], str]] = {
    "preflight": Verification.preflight,
    "connect": Verification.connect,
    "every chip": Verification.every_chip,
    "all slices": Verification.all_slices,
    "transfer": Verification.transfer,
    "refusal": Verification.refusal,
    "queue": Verification.queue,
    "second tenant": Verification.second_tenant,
    "killed client": Verification.killed_client,
    "cut tunnel": Verification.cut_tunnel,
    "teardown": Verification.teardown,
}

_LOOK_AT: Mapping[str, str] = {
    "preflight": "`sps doctor`",
    "connect": "`sps doctor`, `sps status`, and `sps events` for the service's decisions",
    "every chip": "`sps logs --component worker` for the slices of these chips",
    "all slices": "`sps logs --component worker`, and the network between the slices",
    "transfer": "`sps logs` of the connection's proxy",
    "refusal": "`sps status` for holders and spares",
    "queue": "`sps explain` and `sps events` for the resource manager's decisions",
    "second tenant": "`sps status`, and `sps logs` of the named proxy",
    "killed client": "`sps list` and `sps reap`, and the agent's log in the state directory",
    "cut tunnel": "`sps list` and `sps reap`, and the API server's log",
    "teardown": "`sps list` and `sps reap`",
}
