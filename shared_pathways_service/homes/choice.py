"""Creates homes by name; a choice of a home can be sent to another process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.base import Home

__all__ = ["HomeChoice", "make_home"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HomeChoice:
    """The name of a home, and its arguments.

    Attributes:
      name: A name that `make_home` knows.
      options: Keyword arguments of the home's class.
    """

    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def make_home(choice: HomeChoice) -> Home:
    """Creates a home.

    Raises:
      InvalidRequestError: There is no home of that name.
    """
    if choice.name == "embedded":
        # Imported here: a home imports gRPC, which an agent with another home does not need.
        from shared_pathways_service.homes.embedded.home import EmbeddedHome  # noqa: PLC0415

        return EmbeddedHome(**choice.options)
    if choice.name == "kubernetes":
        from shared_pathways_service.homes.kubernetes.home import KubernetesHome  # noqa: PLC0415

        return KubernetesHome(**choice.options)
    raise InvalidRequestError("home", choice.name, "'embedded' or 'kubernetes'")
