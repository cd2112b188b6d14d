"""The homes that there are, by name, and the choice of one as it travels to another process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.base import Home

__all__ = ["HomeChoice", "make_home"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HomeChoice:
    """Which home, and the arguments to make it with.

    Attributes:
      name: One of those that `make_home` knows.
      options: What the home's maker takes.
    """

    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


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
