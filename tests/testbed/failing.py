"""connect() that does not succeed, in this process, and what came of it."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from harness.programs import DEADLINE_S
from harness.testbed.clients import KIND, tenant
from shared_pathways_service import Event, SharedPathwaysError, isc_pathways
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.audit import AuditEntry

__all__ = ["created", "failure", "laptop"]

E = TypeVar("E", bound=SharedPathwaysError)


@contextlib.contextmanager
def laptop(
    namespace: Namespace, role: str = "tenant", kubeconfig: Path | None = None
) -> Iterator[None]:
    """Makes this process one of a user who has a role in the namespace, and no more."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in tenant(namespace, role).items():
            patch.setenv(name, value)
        if kubeconfig is not None:
            patch.setenv("KUBECONFIG", str(kubeconfig))
        # What fails before JAX is attached has no need of it.
        patch.setitem(sys.modules, "jax", types.ModuleType("jax"))
        yield


def failure(
    namespace: Namespace,
    kind: type[E],
    *,
    role: str = "tenant",
    kubeconfig: Path | None = None,
    heard: list[Event] | None = None,
    **request: object,
) -> E:
    """Connects, which must come to an error of this very kind, and returns it.

    Args:
      namespace: Of the service.
      kind: The error's type.
      role: The user's.
      kubeconfig: Instead of the user's.
      heard: Is given the events.
      **request: Of connect(), instead of one slice and the usual patience.
    """
    wanted: dict[str, object] = {"expected_tpu_instances": {KIND: 1}, "timeout": DEADLINE_S}
    with laptop(namespace, role, kubeconfig), pytest.raises(SharedPathwaysError) as caught:
        isc_pathways.connect(
            context="testbed",
            namespace=namespace.name,
            on_event=(heard if heard is not None else []).append,
            **{**wanted, **request},  # type: ignore[arg-type]
        ).start()
    error = caught.value
    assert type(error) is kind, repr(error.to_json())
    assert error.hint, f"what is to be done next? {error.to_json()}"
    return error


def created(namespace: Namespace, role: str = "tenant") -> list[AuditEntry]:
    """Returns a user's requests so far that were to make or change something."""
    requests = namespace.testbed.requests_of(namespace.user(role))
    asked = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "pods/portforward")
    return [
        entry
        for entry in requests
        if entry.verb not in ("get", "list", "watch") and entry.resource not in asked
    ]
