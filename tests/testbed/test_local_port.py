"""A port of this machine that the user named, and that is somebody else's."""

from __future__ import annotations

import socket

from harness.testbed.clients import deployed, nothing_left
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.testing.testbed import Namespace
from tests.testbed.failing import failure


def test_a_local_port_that_is_taken_is_named(namespace: Namespace) -> None:
    deployed(namespace)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = failure(namespace, InvalidRequestError, local_port=port)
    assert (error.field, error.value) == ("local_port", port)
    assert "in use" in error.message
    nothing_left(namespace)
