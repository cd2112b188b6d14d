"""Creates the reader of a service by its home."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.operations.service_readers.base import ServiceReader
from shared_pathways_service.runtime.settings import Settings

__all__ = ["make_reader"]


def make_reader(
    where: ServiceChoice, settings: Settings, warn: Callable[[str], object]
) -> ServiceReader:
    """Creates the reader of a service.

    Args:
      where: The service.
      settings: The directories of this user.
      warn: Called with what could not be read.
    """
    # Imported here: commands that read the embedded service need not load a cluster's client.
    if where.home == "embedded":
        from shared_pathways_service.operations.service_readers.embedded.embedded_reader import (  # noqa: PLC0415
            EmbeddedReader,
        )

        return EmbeddedReader(settings)
    if where.home == "kubernetes":
        from shared_pathways_service.operations.service_readers.kubernetes.cluster_reader import (  # noqa: PLC0415
            ClusterReader,
        )

        return ClusterReader(where, settings, warn)
    assert_never(where.home)
