"""The homes that an agent knows, by name, and how it asks a proxy whether it answers."""

from __future__ import annotations

from shared_pathways_service.agent.messages import HomeChoice
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.base import Home

__all__ = ["make_home"]


def make_home(choice: HomeChoice) -> Home:
    """Makes a home.

    Raises:
      InvalidRequestError: There is none of that name.
    """
    if choice.name == "embedded":
        # Imported here: a home brings gRPC along, which an agent with another has no use for.
        from shared_pathways_service.homes.embedded.home import EmbeddedHome  # noqa: PLC0415

        return EmbeddedHome(**choice.options)
    if choice.name == "kubernetes":
        from shared_pathways_service.homes.kubernetes.home import KubernetesHome  # noqa: PLC0415

        return KubernetesHome(**choice.options)
    raise InvalidRequestError("home", choice.name, "'embedded' or 'kubernetes'")
