"""Declares the flags that all servers have."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.flags.parsing import count, flag
from shared_pathways_service.runtime.glog import read_log_format

__all__ = ["ProcessOptions", "ServerOptions"]


def _gcs_location(text: str) -> str:
    if text and not text.startswith("gs://"):
        raise ValueError("a location gs://…")
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """Flags of the servers and of the supervisor."""

    log_format: str = flag(
        "glog",
        parse=read_log_format,
        env="SPS_LOG_FORMAT",
        help="Log in this format: glog, or json with one object per line.",
    )
    ready_fd: int | None = flag(
        None, parse=count, help="Write the address of this process to this file descriptor."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions(ProcessOptions):
    """Flags of the resource manager, the workers and the proxies."""

    server_socket: str = flag("", help="Serve on the Unix socket at this path.")
    bind_address: str = flag(LOOPBACK, env="SPS_BIND_ADDRESS", help="Bind this address for TCP.")
    gcs_scratch_location: str = flag(
        "", parse=_gcs_location, help="Store scratch data at gs://BUCKET/PATH."
    )
    parent_pid: int = flag(0, help="End with the process of this pid; 0: none.")
