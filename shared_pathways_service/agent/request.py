"""Converts a user's request to an agent's instructions."""

from __future__ import annotations

import getpass
import os
import platform
import secrets
import string
import uuid

from shared_pathways_service.agent.messages import Start
from shared_pathways_service.api.requests import Requester, SessionRequest
from shared_pathways_service.homes.choice import HomeChoice, choose_home
from shared_pathways_service.kube.handed_over import HandedOver
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings, private_directory

__all__ = ["request_of_this_user", "start_of", "this_requester", "user_name"]

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


def request_of_this_user(**keywords: object) -> SessionRequest:
    """Checks keywords of connect(), and returns the request of this process's user.

    Raises:
      InvalidRequestError: A value is wrong, or values contradict each other.
    """
    return SessionRequest.build(this_requester(), **keywords)


def start_of(request: SessionRequest, settings: Settings, home: HomeChoice | None = None) -> Start:
    """Returns the agent's instructions for a new session that this process owns.

    Args:
      request: The session's request.
      settings: The user's settings.
      home: Where its proxy is; None: as the request says.

    Raises:
      InvalidRequestError: A field of `api_client` is invalid, or cannot be carried over.
      AccessDenied: Its hook failed.
    """
    journal = private_directory(settings.state_dir, "SPS_STATE_DIR") / "journal"
    return Start(
        home=home or choose_home(request.service, settings),
        request=request,
        session=str(uuid.uuid4()),
        owner=identity_of(),
        journal=str(journal),
        delete_timeout_s=timeouts.DELETION.s,
        metrics_port=settings.agent_metrics_port,
        metrics_address=settings.agent_metrics_address,
        handed_over=_handed_over(request.client.api_client),
    )


def _handed_over(api_client: object | None) -> HandedOver | None:
    if api_client is None:
        return None
    # Imported here because only requests with such a client need it.
    from shared_pathways_service.kube.official_client import handed_over  # noqa: PLC0415

    return handed_over(api_client)
