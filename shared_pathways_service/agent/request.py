"""Converts a user's request to an agent's instructions."""

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
from shared_pathways_service.api.requests import Requester, SessionRequest
from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings, private_directory

__all__ = ["start_of", "this_requester", "user_name"]

_SUFFIX_LETTERS = string.ascii_lowercase + string.digits


def user_name() -> str:
    """Returns the user's name; if the system has none, one made from the user id."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid-{os.getuid()}"


def this_requester() -> Requester:
    """Returns the user of this process, with a new suffix for a generated name."""
    suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))
    return Requester(user=user_name(), host=platform.node(), suffix=suffix)


def start_of(request: SessionRequest, settings: Settings) -> Start:
    """Returns the agent's instructions for a new session that this process owns."""
    # The home runs in another process, and a third one may read the journal's entry.
    directories = ("runtime_dir", "state_dir", "cache_dir", "config")
    options: dict[str, Any] = {name: str(getattr(settings, name)) for name in directories}
    options["profile"] = settings.profile
    if request.service.home == "kubernetes":
        options |= _cluster_options(request.service, settings)
    journal = private_directory(settings.state_dir, "SPS_STATE_DIR") / "journal"
    return Start(
        home=HomeChoice(name=request.service.home, options=options),
        request=request,
        session=str(uuid.uuid4()),
        owner=identity_of(),
        journal=str(journal),
        metrics_port=settings.agent_metrics_port,
        metrics_address=settings.agent_metrics_address,
    )


def _cluster_options(service: ServiceChoice, settings: Settings) -> dict[str, Any]:
    """Returns arguments of `KubernetesHome` that stay valid in other processes and later."""
    # Imported here because only requests with a cluster need it.
    from shared_pathways_service.kube.access import settled  # noqa: PLC0415
    from shared_pathways_service.kube.cluster import ClusterChoice  # noqa: PLC0415

    choice = settled(
        ClusterChoice(
            cluster=service.cluster or "",
            project=service.project or "",
            region=service.region or "",
            context=service.context or "",
        )
    )
    return {
        **dataclasses.asdict(choice),
        "pathways_service": service.pathways_service or "",
        "namespace": service.namespace,
        "proxy_deadline_s": settings.proxy_deadline_s,
    }
