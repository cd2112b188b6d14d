"""Checks requests for proxies, submitted jobs and disturbances."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from shared_pathways_service.api.ffi_targets import read_ffi_targets
from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.api.proxy_limits import ProxyLimits, asked_limits
from shared_pathways_service.api.validation import check_int, check_port, check_seconds, check_text
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.protocol.tenant_requests import read_tenant_request, tenant_of
from shared_pathways_service.servers.serving.ffi_libraries import find_library
from shared_pathways_service.servers.supervisor.command_lines import ProxyRequest
from shared_pathways_service.servers.supervisor.hold import Disturbance

__all__ = ["read_disturbance", "read_job_request", "read_proxy_request"]

#: The maximum duration of a disturbance in seconds, so that none is forgotten.
_LONGEST_HOLD_S = 3600.0
_KINDS = {
    pb.DisturbSliceRequest.KILL: Disturbance.KILL,
    pb.DisturbSliceRequest.HANG: Disturbance.HANG,
    pb.DisturbSliceRequest.LET_GO: Disturbance.LET_GO,
}

_XLA_FLAG = re.compile(r"--xla_[a-z0-9_]+(=[!-~]*)?")


def read_proxy_request(
    message: pb.CreateProxyRequest,
    types: Collection[str],
    most: ProxyLimits,
    ffi_library_dir: str = "",
    python_refusal: str = "",
) -> ProxyRequest:
    """Checks a request for a service with these instance types, of which the first is the default.

    `most` are the operator's limits; without a directory, proxies load no libraries; with a
    refusal, they run no colocated Python.
    """
    tenant = tenant_of(message)
    if not tenant.virtual_slices:
        tenant.virtual_slices.append(next(iter(types)))
    for wanted in tenant.virtual_slices:
        if wanted not in types:
            raise InvalidRequestError(
                "virtual_slices", wanted, f"types of this service: {', '.join(types)}"
            )
    for xla_flag in message.xla_flags:
        if not _XLA_FLAG.fullmatch(xla_flag):
            raise InvalidRequestError("xla_flags", xla_flag, "flags of the form --xla_NAME=VALUE")
    for target in read_ffi_targets(message.ffi_targets, field="proxy_options"):
        find_library(ffi_library_dir, target, field="proxy_options")
    if message.colocated_python and python_refusal:
        raise InvalidRequestError("proxy_options", "sidecar:true", python_refusal)
    if not message.session:
        raise InvalidRequestError("session", "", "not to be empty")
    return ProxyRequest(
        tenant=read_tenant_request(tenant),
        session=check_text("session", message.session),
        xla_flags=tuple(message.xla_flags),
        ffi_targets=tuple(message.ffi_targets),
        colocated_python=message.colocated_python,
        tcp_port=check_port("tcp_port", message.tcp_port) if message.HasField("tcp_port") else None,
        owner_pid=check_int("owner_pid", message.owner_pid, low=0, high=2**31 - 1),
        owner_start=check_text("owner_start", message.owner_start),
        limits=most.lowered(asked_limits(message.limits)),
    )


def read_job_request(message: pb.SubmitJobRequest) -> JobRequest:
    """Checks a request for a submitted job."""
    try:
        data = json.loads(message.job)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        # (Not the text, which may contain secrets.)
        raise InvalidRequestError("job", type(data).__name__, "a job as JSON")
    return JobRequest.from_json(data)


def read_disturbance(message: pb.DisturbSliceRequest) -> tuple[Disturbance, float]:
    """Checks a request except its slice; returns the kind and the seconds."""
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise InvalidRequestError("kind", message.kind, "KILL, HANG or LET_GO")
    hold_s = check_seconds("hold_s", message.hold_s)
    if hold_s > _LONGEST_HOLD_S:
        raise InvalidRequestError("hold_s", hold_s, f"at most {_LONGEST_HOLD_S:g} seconds")
    return kind, hold_s
