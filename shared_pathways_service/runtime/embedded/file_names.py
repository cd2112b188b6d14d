"""Names of the files of the embedded service."""

from __future__ import annotations

import dataclasses
from pathlib import Path

__all__ = ["RuntimePaths"]


@dataclasses.dataclass(frozen=True)
class RuntimePaths:
    """Files in the runtime directory; their names are short, because paths of sockets are limited.

    Only its user can access the directory.
    """

    directory: Path

    @property
    def state(self) -> Path:
        """The file by which clients find the service."""
        return self.directory / "state.json"

    @property
    def token(self) -> Path:
        """The token for calls to the supervisor and the resource manager."""
        return self.directory / "service.token"

    @property
    def tenant_token(self) -> Path:
        """The token of proxies for the resource manager, which only allows them to hold slices."""
        return self.directory / "tenants.token"

    @property
    def service_lock(self) -> Path:
        """Locked by the supervisor while it runs."""
        return self.directory / "service.lock"

    @property
    def start_lock(self) -> Path:
        """Locked by a client that starts a service."""
        return self.directory / "start.lock"

    @property
    def supervisor_socket(self) -> Path:
        """The supervisor's socket."""
        return self.directory / "s.sock"

    @property
    def resource_manager_socket(self) -> Path:
        """The resource manager's socket, which stays the same after a restart."""
        return self.directory / "rm.sock"

    @property
    def resource_manager_state(self) -> Path:
        """The resource manager's state: grants and queue."""
        return self.directory / "rm.db"

    @property
    def page(self) -> Path:
        """The address of the page while `sps ui` serves it; a service does not remove it."""
        return self.directory / "page.json"

    def worker_socket(self, slice_number: int, host: int) -> Path:
        """A worker's socket."""
        return self.directory / f"w{slice_number}-{host}.sock"

    def proxy_socket(self, uid: str) -> Path:
        """A proxy's socket, by its uid."""
        return self.directory / f"p{uid}.sock"

    def proxy_token(self, uid: str) -> Path:
        """The token for a proxy's clients."""
        return self.directory / f"p{uid}.token"

    def exit_report(self, uid: str) -> Path:
        """The file in which a proxy reports why it ended."""
        return self.directory / f"p{uid}.exit"

    def last_requests(self, uid: str) -> Path:
        """The file in which a proxy records its work in case it crashes."""
        return self.directory / f"p{uid}.last"

    def leftovers(self) -> list[Path]:
        """Returns all files that a killed service leaves behind, except the locks.

        A lock's file stays forever: removing it while another process waits for it would allow two
        holders.
        """
        patterns = ("*.sock", "*.token", "*.exit*", "*.last", "rm.db*", "state.json*")
        return [path for pattern in patterns for path in self.directory.glob(pattern)]
