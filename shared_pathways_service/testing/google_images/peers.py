"""Credentials by which the stand-ins' servers recognize each other, but not clients."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Final

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.pod_parts import INSECURE_SERVERS
from shared_pathways_service.testing.google_images import MACHINE_VARIABLE

__all__ = ["SECRET", "credentials", "instance_type", "token_file"]

#: Guards against mistakes of this project's clients, not against attacks.
SECRET: Final = "of-the-stand-ins"  # noqa: S105


def credentials(environment: Mapping[str, str]) -> str:
    """Returns which gRPC credentials a server uses towards the other servers."""
    name, value = INSECURE_SERVERS
    return "plaintext" if environment.get(name) == value else "alts"


def instance_type(environment: Mapping[str, str]) -> str:
    """Returns the instance type of a worker's slice; empty if the worker has no TPUs.

    A machine that is known to have no TPUs sets an empty type, which `TPU_TYPE` does not change.
    """
    kind = environment.get(MACHINE_VARIABLE, environment.get("TPU_TYPE", ""))
    try:
        return str(InstanceType.parse(kind))
    except InvalidRequestError:
        return ""


@contextlib.contextmanager
def token_file(placement_s: float = 0.0) -> Iterator[tuple[str, int]]:
    """Creates a file with this server's token, which does not outlive the process.

    Args:
      placement_s: Of a proxy: seconds before its slices are placed.

    Yields:
      Its path, and the descriptor that the reading process must inherit.
    """
    words = (SECRET, credentials(os.environ), instance_type(os.environ), str(placement_s))
    token = ";".join(words)
    descriptor = os.memfd_create("token")
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, token.encode())
        yield f"/proc/self/fd/{descriptor}", descriptor
    finally:
        os.close(descriptor)
