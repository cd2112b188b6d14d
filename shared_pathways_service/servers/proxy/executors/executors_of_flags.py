"""The executors and the platform that a proxy's flags ask for."""

from __future__ import annotations

from shared_pathways_service.constants import DISTRIBUTED_ENGINE
from shared_pathways_service.protocol.auth import read_token
from shared_pathways_service.servers.proxy.executors.executors import Executors, hosts_of
from shared_pathways_service.servers.proxy.executors.placed_executors import PlacedExecutors
from shared_pathways_service.servers.proxy.executors.run_comparison import SlowLimits
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.xla.platforms import Placeholders, Platform, make_platform

__all__ = ["named_executors", "placed_executors", "platform_of"]


def named_executors(options: ProxyServerOptions) -> Executors | None:
    """Connects to the executors that flags name; None: they name none.

    Raises:
      InvalidRequestError: Their token cannot be read.
    """
    if not options.executors:
        return None
    token = read_token(options.executor_token_file, field="--executor_token_file")
    hosts = hosts_of(options.instance_types(), with_cpus=options.colocated_python)
    return Executors(
        options.executors,
        hosts,
        token,
        options.collective_timeout_s,
        options.transport,
        platform=options.platform,
    )


def placed_executors(options: ProxyServerOptions) -> PlacedExecutors | None:
    """Returns executors that come and go with placements; None: there are no such."""
    if not options.places_executors:
        return None
    return PlacedExecutors(
        options.instance_types(),
        with_cpus=options.colocated_python,
        collective_timeout_s=options.collective_timeout_s,
        transport=options.transport,
        platform=options.platform,
        slow=SlowLimits(ratio=options.slow_executor_ratio, runs=options.slow_executor_runs),
    )


def platform_of(options: ProxyServerOptions) -> Platform:
    """Returns the devices of this process, or placeholders for those of executors.

    Raises:
      InvalidRequestError: This process does not have such devices.
    """
    if options.engine == DISTRIBUTED_ENGINE:
        return Placeholders(options.platform)
    return make_platform(options.platform, sum(t.chips for t in options.instance_types()))
