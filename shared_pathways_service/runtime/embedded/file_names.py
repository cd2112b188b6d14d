"""Names of the files of the embedded service."""

from __future__ import annotations

import dataclasses
from pathlib import Path

__all__ = ["RuntimePaths"]


@dataclasses.dataclass(frozen=True)
class RuntimePaths:
    """Files in the runtime directory; short names, as paths of sockets are limited.

    Attributes:
      directory: Private to its user.
    """

    directory: Path

    @property
    def state(self) -> Path:
        """What clients read to find the service."""
        return self.directory / "state.json"

    @property
    def token(self) -> Path:
        """What calls to the supervisor and to the resource manager must show."""
        return self.directory / "service.token"

    @property
    def tenant_token(self) -> Path:
        """What proxies show the resource manager: it lets them hold slices, and no more."""
        return self.directory / "tenants.token"

    @property
    def service_lock(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.directory / "service.lock"

    @property
    def start_lock(self) -> Path:
        """Held by a client that starts a service."""
        return self.directory / "start.lock"

    @property
    def supervisor_socket(self) -> Path:
        """The supervisor's."""
        return self.directory / "s.sock"

    @property
    def resource_manager_socket(self) -> Path:
        """The resource manager's; the same one after a restart."""
        return self.directory / "rm.sock"

    @property
    def resource_manager_state(self) -> Path:
        """The resource manager's grants and queue."""
        return self.directory / "rm.db"

    def worker_socket(self, slice_number: int, host: int) -> Path:
        """A worker's."""
        return self.directory / f"w{slice_number}-{host}.sock"

    def proxy_socket(self, uid: str) -> Path:
        """A proxy's, by its uid."""
        return self.directory / f"p{uid}.sock"

    def proxy_token(self, uid: str) -> Path:
        """What the tenant of a proxy must show."""
        return self.directory / f"p{uid}.token"

    def exit_report(self, uid: str) -> Path:
        """Where a proxy says why it ended."""
        return self.directory / f"p{uid}.exit"

    def last_requests(self, uid: str) -> Path:
        """Where a proxy keeps what it does, should it crash."""
        return self.directory / f"p{uid}.last"

    def leftovers(self) -> list[Path]:
        """Returns all that a service leaves behind if it is killed; the locks are no part of it.

        A lock's file stays for good: who removes one while another waits for it makes two holders.
        """
        patterns = ("*.sock", "*.token", "*.exit*", "*.last", "rm.db*", "state.json*")
        return [path for pattern in patterns for path in self.directory.glob(pattern)]
