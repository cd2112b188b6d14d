"""The interface of the readers of services."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from shared_pathways_service.api.checks import Check
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.operations.service_readers.shown_counters import Counters

__all__ = ["Component", "LogRequest", "Proxies", "ServiceReader", "ShowLine"]

Component = Literal["proxy", "rm", "worker", "executor"]
#: Called with the line's source (empty if there is only one) and the line.
ShowLine = Callable[[str, str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogRequest:
    """The logs to read.

    Attributes:
      name: A connection; may be empty, except for logs of a proxy or of executors.
      host: Only the executors of these hosts of its slices; None: of all.
      lines: Last lines of each log to begin with.
      follow: Whether to follow new lines.
    """

    name: str
    component: Component
    lines: int
    follow: bool
    host: int | None = None


class Proxies(Protocol):
    """The proxies of a home that are not only known from this machine's journal."""

    @property
    def server_time(self) -> float:
        """Seconds since 1970 by the clock of the last answer, which dates deadlines, too."""

    async def proxies(self, user: str = "") -> Sequence[KnownProxy]:
        """Returns those of a user, oldest first; empty: of all users."""

    async def proxy(self, name: str) -> KnownProxy:
        """Returns one; raises ServiceNotFound if there is none of that name."""

    async def delete(self, proxy: KnownProxy) -> bool:
        """Deletes one; returns False if it had already ended."""


class ServiceReader(Protocol):
    """A service of one home, read from outside of a session.

    Attributes:
      has_counters: Whether proxies answer for their counters; otherwise the status has those that
        they reported last.
      starts_on_demand: Whether connect() starts the service if there is none.
      has_tunnel: Whether clients reach their proxies through a tunnel.
    """

    has_counters: bool
    starts_on_demand: bool
    has_tunnel: bool

    def checks(
        self, request: SessionRequest, timeout_s: float, proxy_job_name: str | None = None
    ) -> list[Check]:
        """Checks whether a request could be met.

        Args:
          request: The request.
          timeout_s: Seconds for the checks of the service.
          proxy_job_name: A running proxy whose credentials are checked, too.

        Raises:
          InvalidRequestError: The home has no such proxies.
        """

    def status(self, name: str | None = None, *, wait_s: float = 0.0) -> dict[str, Any]:
        """Returns the output of ``sps status --json``.

        Args:
          name: A connection; None: all of them.
          wait_s: Seconds to wait for a service with all slices ready; 0: do not wait.

        Raises:
          ServiceNotFound: There is no service, or no connection of that name.
          ServiceNotReady: The service does not answer, or not all slices were ready in time.
        """

    def counters(self, name: str | None) -> Counters:
        """Returns the proxies' counters, which `status` shows as well.

        Args:
          name: A connection; None: all of them.

        Raises:
          ServiceNotFound: The resource manager is one of Google's, which collects none.
          ServiceNotReady: The service does not answer.
          VersionSkew: The service is too old to collect them.
        """

    def manager(self) -> AbstractAsyncContextManager[Manager]:
        """Connects to the resource manager for the length of the block.

        Raises:
          ServiceNotFound: There is none, or it is one of Google's, which do not support calls.
          ServiceNotReady: It does not answer.
        """

    def proxies(self) -> AbstractAsyncContextManager[Proxies]:
        """Gives access to proxies for the length of the block."""

    def left_behind(self, names: set[str]) -> list[str]:
        """Returns what is left of connections in the service, apart from the journal, in words."""

    def show_logs(self, wanted: LogRequest, show: ShowLine) -> None:
        """Shows logs, until they end or, if they are followed, their writers do.

        Raises:
          ServiceNotFound: There are no such logs.
        """
