"""What the channels to a resource manager are set to."""

from __future__ import annotations

import pytest

from shared_pathways_service.rmclient.channels import STREAM_CHANNEL, stream_channel


@pytest.mark.parametrize(
    ("address", "asks"), [("unix:/run/sps/rm.sock", False), ("head-0.svc:29001", True)]
)
def test_only_a_manager_elsewhere_is_asked_for_signs_of_life(address: str, *, asks: bool) -> None:
    options = dict(stream_channel(address))
    assert ("grpc.keepalive_time_ms" in options, "grpc.keepalive_timeout_ms" in options) == (
        asks,
        asks,
    )
    assert options.items() <= dict(STREAM_CHANNEL).items()
