"""The homes that an agent knows, by name."""

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
        # Imported here: a home brings gRPC along, which the client's side has no use for.
        from shared_pathways_service.homes.embedded import EmbeddedHome  # noqa: PLC0415

        return EmbeddedHome(**choice.options)
    raise InvalidRequestError("home", choice.name, "'embedded'")
