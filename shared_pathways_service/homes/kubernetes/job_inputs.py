"""From what a session asks for to what its proxy's Job is made of."""

from __future__ import annotations

from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.homes.base import ProxySpec
from shared_pathways_service.manifests.image_names import proxy_image_for
from shared_pathways_service.manifests.lifetime import deadline_s
from shared_pathways_service.manifests.proxy_job import ProxyJobInputs

__all__ = ["proxy_job_inputs"]


def proxy_job_inputs(
    spec: ProxySpec, service: Service, *, namespace: str, ahead_s: float
) -> ProxyJobInputs:
    """Returns what a proxy's Job is made of.

    Args:
      spec: What the session asks for; its priority as the cluster has it.
      service: Which it is a proxy of, and what is not asked for is taken from.
      namespace: Where it will be.
      ahead_s: Seconds that it outlives the last sign of its session's life.
    """
    return ProxyJobInputs(
        name=spec.name,
        namespace=namespace,
        session=spec.session,
        service_address=service.address,
        service_name=service.name,
        insecure_server_credentials=service.insecure_credentials,
        virtual_slices=spec.virtual_slices or tuple(service.instances)[:1],
        image=spec.image or proxy_image_for(service.image),
        gcs_bucket=spec.gcs_bucket or service.gcs_scratch_location,
        num_elastic_slices=spec.num_elastic_slices,
        queue_timeout_s=spec.queue_timeout_s,
        priority=spec.priority,
        max_lifetime_s=spec.max_lifetime_s,
        options=spec.options,
        user=spec.user,
        host=spec.host,
        team=spec.team,
        labels=spec.labels,
        created_by_pid=spec.owner_pid,
        deadline_s=deadline_s(0.0, spec.max_lifetime_s, ahead_s=ahead_s),
    )
