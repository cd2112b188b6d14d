"""What a fork means for the parts of a connection; `tests/e2e/test_forked.py` forks."""

from __future__ import annotations

import os
import weakref

import pytest

from shared_pathways_service.jax_client.plugin import forked
from shared_pathways_service.jax_client.plugin.callbacks import Callbacks


class Client:
    """Stands for JAX's."""


@pytest.mark.parametrize("address", ["unix:/no/such/socket", "unix-abstract:name"])
def test_a_client_is_watched_where_its_sockets_cannot_be_found(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: weakref.WeakKeyDictionary[Client, object] = weakref.WeakKeyDictionary()
    monkeypatch.setattr(forked, "_clients", clients)
    monkeypatch.setattr(forked, "_settle", lambda: None)
    client = Client()
    forked.watch(client, address)
    assert list(clients.items()) == [(client, None)]


def test_a_forked_child_does_not_wait_for_a_lock_of_its_parent() -> None:
    callbacks = Callbacks("unix:/no/such/socket", None, bytes(16))
    callbacks._process = os.getppid()
    # (Held by a thread that the child does not have, it would block for ever.)
    callbacks._lock = None  # type: ignore[assignment]
    assert not callbacks.opened()
    callbacks.await_effects()
    callbacks.close()
