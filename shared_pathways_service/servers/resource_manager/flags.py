"""Flags of the resource manager: those of the real image, and ours."""

from __future__ import annotations

import collections
import dataclasses

from shared_pathways_service import constants
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import (
    comma_separated,
    count,
    flag,
    port,
    positive_int,
    seconds,
)
from shared_pathways_service.flags.policies import PolicyOptions
from shared_pathways_service.runtime.glog import read_log_format
from shared_pathways_service.scheduling.book.limits import Limits
from shared_pathways_service.servers.serving.connections import ConnectionOptions

__all__ = ["ResourceManagerOptions"]

NODE_TYPE = "resource_manager"


def _counts(text: str) -> tuple[int, ...]:
    return tuple(positive_int(word) for word in comma_separated(text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResourceManagerOptions(ConnectionOptions, PolicyOptions):
    """How a resource manager runs."""

    server_port: int | None = flag(
        None, parse=port, help="TCP port; 0: any. By default 29001, or none with --server_socket."
    )
    server_socket: str = flag("", help="Path of a Unix socket to serve on.")
    bind_address: str = flag(
        constants.LOOPBACK, env="SPS_BIND_ADDRESS", help="Address to bind for TCP."
    )
    gcs_scratch_location: str = flag("", help="gs://BUCKET/PATH for scratch data.")
    node_type: str = flag(NODE_TYPE, help=f"Must be {NODE_TYPE}.")
    instance_type: tuple[str, ...] = flag(
        (), parse=comma_separated, help="Type of the slices, e.g. tpuv6e:2x2; several: A,B."
    )
    instance_count: tuple[int, ...] = flag(
        (), parse=_counts, help="Slices that the service should have; one number a type."
    )
    num_spares: int = flag(
        0,
        parse=count,
        env="SPS_NUM_SPARES",
        help="Of the slices, how many of each type are kept free for re-placement.",
    )
    state_file: str = flag("", env="SPS_STATE_FILE", help="SQLite file; empty: nothing is kept.")
    record_events: str = flag(
        "",
        env="SPS_RECORD_EVENTS",
        help="File to append all events to, for `sps replay`; it grows without a limit.",
    )
    first_start: bool = flag(
        False,
        help="Nobody holds anything yet: without a state file's word, reports are not awaited.",
    )
    token_file: str = flag("", env="SPS_TOKEN_FILE", help="File with the token callers must show.")
    tenant_token_file: str = flag(
        "",
        env="SPS_TENANT_TOKEN_FILE",
        help="File with a second token, for proxies: who shows it may ask for slices and hold "
        "them, and nothing else.",
    )
    beat_interval_s: float = flag(
        constants.WORKER_BEAT_S, parse=seconds, help="Seconds between two beats of a worker."
    )
    hung_after_s: float = flag(
        constants.WORKER_HUNG_S, parse=seconds, help="Without a beat, when a worker counts as hung."
    )
    tenant_ttl_s: float = flag(
        constants.TENANT_TTL_S, parse=seconds, help="How long slices outlive a proxy's stream."
    )
    recovering_s: float = flag(
        constants.RECOVERING_S, parse=seconds, help="How long reports are awaited after a restart."
    )
    watcher_limit: int = flag(
        10_000, parse=positive_int, help="Events that may wait for a watcher that does not read."
    )
    max_connections: int = flag(
        16_384,
        parse=positive_int,
        env="SPS_MAX_CONNECTIONS",
        help="Connections at a time; one more is closed at once. Every worker and proxy has one.",
    )
    max_streams_per_connection: int = flag(
        100,
        parse=positive_int,
        env="SPS_MAX_STREAMS_PER_CONNECTION",
        help="Calls at a time on one connection; a client holds back those beyond.",
    )
    max_calls: int = flag(
        16_384,
        parse=positive_int,
        env="SPS_MAX_CALLS",
        help="Calls at a time, of all clients, workers and proxies included; one that is held open "
        "costs 32 KiB.",
    )
    max_calls_per_host: int = flag(
        8192,
        parse=positive_int,
        env="SPS_MAX_CALLS_PER_HOST",
        help="Calls at a time of one IP address; in a cluster all that come by port-forward, as "
        "connections do, are of one.",
    )
    request_timeout_s: float = flag(
        10.0,
        parse=seconds,
        env="SPS_REQUEST_TIMEOUT_S",
        help="Seconds for the request of a call to come; a stream has as long for its hello.",
    )
    slow_reader_s: float = flag(
        60.0,
        parse=seconds,
        env="SPS_SLOW_READER_S",
        help="Seconds for a client to read an answer that waits; then its call is ended.",
    )
    stop_exit_code: int = flag(
        0,
        parse=count,
        env="SPS_STOP_EXIT_CODE",
        help="Exit code after a stop signal; a Job of Kubernetes takes 0 for work that is done.",
    )
    log_format: str = flag(
        "glog",
        parse=read_log_format,
        env="SPS_LOG_FORMAT",
        help="glog or json: one object a line, for collectors of logs.",
    )
    parent_pid: int = flag(0, help="The process whose end ends this one; 0: none.")
    ready_fd: int | None = flag(
        None, parse=count, help="Descriptor that is told where this process serves."
    )

    def __post_init__(self) -> None:
        """Checks what concerns several flags."""
        super().__post_init__()
        if self.node_type != NODE_TYPE:
            raise InvalidRequestError("--node_type", self.node_type, NODE_TYPE)
        if self.gcs_scratch_location and not self.gcs_scratch_location.startswith("gs://"):
            raise InvalidRequestError(
                "--gcs_scratch_location", self.gcs_scratch_location, "a location gs://…"
            )
        if self.tenant_token_file and not self.token_file:
            raise InvalidRequestError(
                "--tenant_token_file", self.tenant_token_file, "given beside --token_file only"
            )
        if not self.instance_type:
            raise InvalidRequestError("--instance_type", "", "at least one type")
        if len(self.instance_type) != len(self.instance_count):
            raise InvalidRequestError(
                "--instance_count",
                ",".join(map(str, self.instance_count)),
                f"one number for each of the {len(self.instance_type)} types",
            )
        repeated = [t for t, n in collections.Counter(self.instance_type).items() if n > 1]
        if repeated:
            raise InvalidRequestError("--instance_type", repeated[0], "each type once")
        if self.hung_after_s <= self.beat_interval_s:
            raise InvalidRequestError(
                "--hung_after_s", self.hung_after_s, "more than --beat_interval_s"
            )
        if min(self.instance_count) <= self.num_spares:
            raise InvalidRequestError(
                "--num_spares", self.num_spares, "fewer than the slices of each type"
            )
        self.slices()

    def limits(self) -> Limits:
        """Returns what a tenant and a team may have at most."""
        return Limits(
            tenant_slices=self.max_slices_per_tenant,
            team_slices=self.max_slices_per_team,
            team_tenants=self.max_tenants_per_team,
            wait_s=self.max_wait_s,
            memory_bytes=self.proxy_memory_limit_bytes,
        )

    def slices(self) -> dict[InstanceType, int]:
        """Returns how many slices of each type the service should have, in the order given."""
        types = (InstanceType.parse(t, field="--instance_type") for t in self.instance_type)
        return dict(zip(types, self.instance_count, strict=True))
