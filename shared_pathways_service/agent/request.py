"""From what a user asked for to what an agent is told."""

from __future__ import annotations

import dataclasses
import getpass
import os
import platform
import secrets
import string
import uuid
from typing import Any

from shared_pathways_service.agent.messages import Start
from shared_pathways_service.api.requests import DEFAULT_PROXY_IMAGE, ConnectRequest
from shared_pathways_service.homes.base import ProxySpec
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings, private_directory
from shared_pathways_service.session.messages import Plan

__all__ = ["build_request", "start_of", "user_name"]

_SUFFIX_LETTERS = string.ascii_lowercase + string.digits


def user_name() -> str:
    """Returns the user's name; where the system has none, one made of the number."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid-{os.getuid()}"


def build_request(**keywords: object) -> ConnectRequest:
    """Checks connect()'s keywords; nothing is started.

    Raises:
      InvalidRequestError: One is wrong.
    """
    suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))
    # (Its keywords are connect()'s, each checked there.)
    return ConnectRequest.build(user=user_name(), suffix=suffix, **keywords)


def start_of(request: ConnectRequest, settings: Settings) -> Start:
    """Returns the agent's orders for a new session that this process owns."""
    owner = identity_of()
    types = tuple(str(instance_type) for instance_type in request.virtual_slices)
    image = request.proxy_server_image
    spec = ProxySpec(
        name=request.proxy_job_name,
        session=str(uuid.uuid4()),
        virtual_slices=types,
        num_elastic_slices=request.elastic_slices,
        priority=request.priority,
        priority_class=request.priority_class,
        queue_timeout_s=request.queue_timeout,
        options=request.proxy_options,
        # (The default stands for whichever goes with the service.)
        image="" if image == DEFAULT_PROXY_IMAGE else image,
        gcs_bucket=request.gcs_bucket or "",
        local_port=request.local_port,
        owner_pid=owner.pid,
        owner_start=owner.start,
        user=user_name(),
        team=request.team,
        host=platform.node(),
        labels=dict(request.labels),
        max_lifetime_s=request.max_lifetime,
    )
    plan = Plan(
        name=spec.name,
        virtual_slices=types,
        num_elastic_slices=request.elastic_slices,
        wait_placed=request.wait == "placed",
        timeout_s=request.timeout,
        queue_timeout_s=request.queue_timeout,
    )
    # The home lives in another process, and a journal's entry may be read by a third.
    directories = ("runtime_dir", "state_dir", "cache_dir", "config")
    options: dict[str, Any] = {name: str(getattr(settings, name)) for name in directories}
    options["profile"] = settings.profile
    if request.home == "kubernetes":
        options |= _cluster_options(request, settings)
    journal = private_directory(settings.state_dir, "SPS_STATE_DIR") / "journal"
    return Start(
        home=HomeChoice(name=request.home, options=options),
        spec=spec,
        plan=plan,
        owner=owner.to_json(),
        journal=str(journal),
        collect_metrics=request.collect_service_metrics,
        metrics_port=settings.agent_metrics_port,
        metrics_address=settings.agent_metrics_address,
    )


def _cluster_options(request: ConnectRequest, settings: Settings) -> dict[str, Any]:
    """Returns what `KubernetesHome` takes, good in another process and on another day."""
    # Here: who names no cluster has no use for it.
    from shared_pathways_service.kube.access import ClusterChoice, settled  # noqa: PLC0415

    choice = settled(
        ClusterChoice(
            cluster=request.cluster or "",
            project=request.project or "",
            region=request.region or "",
            context=request.context or "",
        )
    )
    return {
        **dataclasses.asdict(choice),
        "pathways_service": request.pathways_service or "",
        "namespace": request.namespace,
        "proxy_deadline_s": settings.proxy_deadline_s,
    }
