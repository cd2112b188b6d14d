"""Flags of the resource manager: those of Google's image, and ours."""

from __future__ import annotations

import collections
import dataclasses

from shared_pathways_service import constants
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.constants import DISTRIBUTED_ENGINE, ENGINES, LOCAL_ENGINE
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import (
    choice,
    comma_separated,
    count,
    flag,
    port,
    positive_int,
    seconds,
    seconds_or_zero,
)
from shared_pathways_service.flags.policies import PolicyOptions
from shared_pathways_service.flags.servers import ServerOptions
from shared_pathways_service.kube.in_cluster import SERVICE_ACCOUNT_DIRECTORY
from shared_pathways_service.scheduling.book.config import Limits
from shared_pathways_service.servers.serving.admission import CallOptions
from shared_pathways_service.servers.serving.connections import ConnectionOptions

__all__ = ["ResourceManagerOptions"]

NODE_TYPE = "resource_manager"


def _counts(text: str) -> tuple[int, ...]:
    return tuple(positive_int(word) for word in comma_separated(text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResourceManagerOptions(ServerOptions, ConnectionOptions, CallOptions, PolicyOptions):
    """Options of a resource manager."""

    server_port: int | None = flag(
        None,
        parse=port,
        help="Serve on this TCP port; 0: any. [default: 29001, or none with --server_socket]",
    )
    node_type: str = flag(NODE_TYPE, help=f"Must be {NODE_TYPE}.")
    instance_type: tuple[str, ...] = flag(
        (), parse=comma_separated, help="Types of the slices, e.g. tpuv6e:2x2, separated by commas."
    )
    instance_count: tuple[int, ...] = flag(
        (), parse=_counts, help="Number of slices that the service should have, one per type."
    )
    num_spares: int = flag(
        0,
        parse=count,
        env="SPS_NUM_SPARES",
        help="Reserve so many slices of each type to replace lost ones.",
    )
    state_file: str = flag(
        "",
        env="SPS_STATE_FILE",
        help="Store the state in this SQLite file; empty: do not store it.",
    )
    record_events: str = flag(
        "",
        env="SPS_RECORD_EVENTS",
        help="Append all events to this file for `sps replay`; it grows without limit.",
    )
    first_start: bool = flag(
        False,
        help="Do not wait for reports of holders if there is no state file: the service is new.",
    )
    discard_state: bool = flag(
        False,
        help="Move a state file of a newer release aside and begin anew, which loses grants, "
        "reservations, cordons and history; without it the start is refused.",
    )
    token_file: str = flag(
        "", env="SPS_TOKEN_FILE", help="Require the token in this file from callers."
    )
    tenant_token_file: str = flag(
        "",
        env="SPS_TENANT_TOKEN_FILE",
        help="Accept the token in this file from proxies, which may only request and hold slices.",
    )
    beat_interval_s: float = flag(
        constants.WORKER_BEAT_S, parse=seconds, help="Send a worker's heartbeats at this interval."
    )
    hung_after_s: float = flag(
        constants.WORKER_HUNG_S,
        parse=seconds,
        help="Consider a worker hung after so long without a heartbeat.",
    )
    tenant_ttl_s: float = flag(
        constants.TENANT_TTL_S,
        parse=seconds,
        help="Keep a tenant's slices so long after its proxy's stream ended.",
    )
    recovering_s: float = flag(
        constants.RECOVERING_S, parse=seconds, help="Wait so long for reports after a restart."
    )
    watcher_limit: int = flag(
        10_000, parse=positive_int, help="Queue so many events for a watcher that does not read."
    )
    max_connections: int = flag(
        16_384,
        parse=positive_int,
        env="SPS_MAX_CONNECTIONS",
        help="Limit the concurrent connections; one more is closed at once. Every worker and "
        "proxy has one.",
    )
    max_streams_per_connection: int = flag(
        100,
        parse=positive_int,
        env="SPS_MAX_STREAMS_PER_CONNECTION",
        help="Limit the concurrent calls on one connection; a client delays further ones.",
    )
    proxy_counters_s: float = flag(
        constants.PROXY_COUNTERS_S,
        parse=seconds_or_zero,
        env="SPS_PROXY_COUNTERS_S",
        help="Let proxies report their counters after so many seconds each, for `sps status` and "
        "the metrics; 0: never.",
    )
    engine: str = flag(
        LOCAL_ENGINE,
        parse=choice(*ENGINES),
        env="SPS_ENGINE",
        help="Compute in proxies (local), or in executors that workers start (distributed).",
    )
    lease: str = flag(
        "",
        env="SPS_LEASE",
        help="In a pod: decide only while holding the Lease of this name; empty: there is none.",
    )
    lease_duration_s: int = flag(
        15,
        parse=positive_int,
        help="With --lease: let another head decide this long after the last renewal; without one "
        "for two thirds of it, this one ends.",
    )
    identity_audience: str = flag(
        "",
        env="SPS_IDENTITY_AUDIENCE",
        help="In a pod: verify the users of tenants, whose proxies must show a token of their pod "
        "for this audience; empty: believe what proxies state.",
    )
    service_account_directory: str = flag(
        SERVICE_ACCOUNT_DIRECTORY,
        env="SPS_SERVICE_ACCOUNT_DIRECTORY",
        help="With --lease or --identity_audience: read the token and the certificate for the API "
        "server here.",
    )
    stop_exit_code: int = flag(
        0,
        parse=count,
        env="SPS_STOP_EXIT_CODE",
        help="Exit with this code after a stop signal; a Job of Kubernetes counts 0 as success.",
    )

    def __post_init__(self) -> None:
        """Checks that the flags are consistent."""
        super().__post_init__()
        if self.node_type != NODE_TYPE:
            raise InvalidRequestError("--node_type", self.node_type, NODE_TYPE)
        if self.tenant_token_file and not self.token_file:
            raise InvalidRequestError(
                "--tenant_token_file", self.tenant_token_file, "to be given only with --token_file"
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

    @property
    def has_executors(self) -> bool:
        """Whether workers run executors."""
        return self.engine == DISTRIBUTED_ENGINE

    def limits(self) -> Limits:
        """Returns the limits of a tenant and of a team."""
        return Limits(
            tenant_slices=self.max_slices_per_tenant,
            team_slices=self.max_slices_per_team,
            team_tenants=self.max_tenants_per_team,
            wait_s=self.max_wait_s,
            priority=self.max_priority,
            memory_bytes=self.proxy_memory_limit_bytes,
        )

    def slices(self) -> dict[InstanceType, int]:
        """Returns the configured number of slices by type, in order."""
        types = (InstanceType.parse(t, field="--instance_type") for t in self.instance_type)
        return dict(zip(types, self.instance_count, strict=True))
