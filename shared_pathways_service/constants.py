"""Times and sizes that several parts agree on; each is an option of the server that uses it."""

from __future__ import annotations

import errno

#: Answers of a file system without locks, such as a network's without a lock server.
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
#: The address that servers bind by default.
LOOPBACK = "127.0.0.1"
#: Seconds between two beats of a worker, and without a beat after which it counts as hung.
WORKER_BEAT_S = 10.0
WORKER_HUNG_S = 30.0
#: Seconds that a tenant keeps its slices after its proxy's stream broke.
TENANT_TTL_S = 15.0
#: Seconds between the notice that slices are taken and their being taken.
PREEMPTION_GRACE_S = 30.0
#: Seconds that a tenant may state as its lifetime at the most: a hundred years.
LONGEST_LIFETIME_S = 3_155_760_000.0
#: Seconds of waiting that are worth one band of priority.
AGING_S = 3600.0
#: Seconds that a restarted resource manager waits for reports before it grants again.
RECOVERING_S = 20.0
#: Seconds that a program may go on running on a lost slice before its proxy is ended.
LOST_PROGRAM_GRACE_S = 30.0
#: Seconds for which a host waits for others in a program over several hosts.
COLLECTIVE_TIMEOUT_S = 60
#: An executor is slow if runs take longer than this multiple of the time on its peers; with the
#: range of the multiple.
SLOW_EXECUTOR_RATIO = 1.5
SLOW_EXECUTOR_RATIOS = (1.1, 1000.0)
#: The number of consecutive runs that show it, with its range.
SLOW_EXECUTOR_RUNS = 20
SLOW_EXECUTOR_RUN_COUNTS = (2, 10_000)
#: Seconds between two reports of a proxy's counters to the resource manager.
PROXY_COUNTERS_S = 10.0
#: Seconds that a service which connect() started lives after its last client.
SERVICE_IDLE_S = 60.0
#: Seconds that a proxy's Job is kept ahead of its deadline, and between two pushes of it.
PROXY_DEADLINE_S = 600.0
PROXY_DEADLINE_PUSH_S = 120.0
#: Seconds that a user may ask a proxy to outlive the last sign of life by, at the least.
SHORTEST_KEEP_FOR_S = 60.0
#: Restarts of the workers of one slice before the slice, or the service, is given up: never.
MAX_SLICE_RESTARTS = 1_000_000
#: Bytes of the embedded service's compiled programs on disk.
COMPILE_CACHE_BYTES = 1 << 30
#: Lines of a log that an error shows.
LOG_TAIL_LINES = 20

#: What executors can compute on. A proxy itself can compute on all but TPUs.
PLATFORMS = CPU, CUDA, TPU = "cpu", "cuda", "tpu"

#: Where a tenant's programs run: in its proxy, or in the executors on the hosts of its slices.
ENGINES = LOCAL_ENGINE, DISTRIBUTED_ENGINE = "local", "distributed"

#: By which a proxy is served: grpcio's core, its public API, or the first where it can be.
TRANSPORTS = ("auto", "core", "public")

#: Ports of the three servers in a cluster (Pathways on Cloud).
PROXY_PORT = 29000
RESOURCE_MANAGER_PORT = 29001
WORKER_PORT = 29005
#: Port of a link's far end, beside a proxy.
LINK_PORT = 29002
#: Port on which the pod of a submitted job listens while its program runs.
JOB_PORT = 29003
#: How the reason of a `ServiceWarning` begins if a cluster does not allow a far end.
NOT_RESUMABLE = "the link is not resumable"
#: The image of its sidecar beside Google's proxies: nothing but Python.
LINK_IMAGE = "python:3.13-slim"

#: Versions of this project's own gRPC protocols that this code speaks, both ends included.
PROTOCOL_MIN = 1
PROTOCOL_MAX = 2
