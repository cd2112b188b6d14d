"""Requests about the client as a whole."""

from __future__ import annotations

import pytest

from harness.proxy.raw import Failed
from tests.servers.proxy.conftest import MakeClient, MakeProxy
from tests.servers.proxy.session.arrays import INVALID


@pytest.mark.parametrize("runs_python", [False, True])
def test_a_default_assignment_has_chips_only(
    make_proxy: MakeProxy, connect: MakeClient, runs_python: bool
) -> None:
    client = connect(make_proxy(runs_python=runs_python).address)
    answer = client.call("get_default_device_assignment", num_replicas=2, num_partitions=4)
    found = [list(c.replica_device_ids) for c in answer.device_assignment.computation_devices]
    assert found == [[0, 4], [1, 5], [2, 6], [3, 7]]
    for replicas, partitions in ((3, 3), (16, 1), (0, 4)):
        with pytest.raises(Failed, match="devices out of 8") as raised:
            client.call(
                "get_default_device_assignment",
                num_replicas=replicas,
                num_partitions=partitions,
            )
        assert raised.value.code == INVALID
