"""Derives the inputs of a proxy's Job from a session's request."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.manifests.image_names import proxy_image_for
from shared_pathways_service.manifests.lifetime import deadline_s
from shared_pathways_service.manifests.link_parts import LinkInputs
from shared_pathways_service.manifests.proxy_inputs import IdentityInputs, ProxyJobInputs

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
    link: LinkInputs | None,
    user: str = "",
) -> ProxyJobInputs:
    """Returns the inputs of a proxy's Job.

    Args:
      request: The session's request.
      service: The service, which supplies what the request omits.
      priority: The tenant's priority, as the cluster defines it.
      namespace: The namespace of the Job.
      session: UUID of the session.
      created_by_pid: The process that owns the session.
      ahead_s: Seconds for which the Job outlives the last extension of its deadline.
      link: The far end of a resumable link; None: the link is plain.
      user: The user by the API server's name, if the service verifies users.
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
        link=link,
        identity=IdentityInputs(audience=service.audience, user=user) if user else None,
        programs_claim=service.programs_claim,
        engine=service.engine,
        platform=service.platform,
        keep_for_s=request.keep_for_s,
        deadline_s=deadline_s(0.0, tenant.max_lifetime_s, ahead_s=ahead_s),
    )
