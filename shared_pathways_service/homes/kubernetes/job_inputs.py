"""From what a session asks for to what its proxy's Job is made of."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.manifests.image_names import proxy_image_for
from shared_pathways_service.manifests.lifetime import deadline_s
from shared_pathways_service.manifests.proxy_job import ProxyJobInputs

__all__ = ["proxy_job_inputs"]


def proxy_job_inputs(
    request: SessionRequest,
    service: Service,
    *,
    priority: int,
    namespace: str,
    session: str,
    created_by_pid: int,
    ahead_s: float,
) -> ProxyJobInputs:
    """Returns what a proxy's Job is made of.

    Args:
      request: What the session asks for.
      service: The proxy's service; it has what the request leaves open.
      priority: The tenant's priority as the cluster has it.
      namespace: Where it will be.
      session: UUID of the session.
      created_by_pid: The process that the Job is for.
      ahead_s: Seconds that it outlives the last sign of its session's life.
    """
    first_type = tuple(map(InstanceType.parse, service.instances))[:1]
    tenant = dataclasses.replace(
        request.tenant,
        virtual_slices=request.tenant.virtual_slices or first_type,
        priority=priority,
    )
    return ProxyJobInputs(
        tenant=tenant,
        namespace=namespace,
        session=session,
        service_address=service.address,
        service_name=service.name,
        insecure_server_credentials=service.insecure_credentials,
        image=request.chosen_image or proxy_image_for(service.image),
        gcs_bucket=request.gcs_bucket or service.gcs_scratch_location,
        options=request.proxy_options,
        labels=request.labels,
        created_by_pid=created_by_pid,
        deadline_s=deadline_s(0.0, tenant.max_lifetime_s, ahead_s=ahead_s),
    )
