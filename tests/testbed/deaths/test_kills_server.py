"""The API server is away when a program ends: its agent goes on, the journal is kept till then."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from harness.deadlines import wait_until
from harness.testbed.clients import client, journal
from harness.testbed.kills import all_free, served
from shared_pathways_service.testing.testbed import DeployedService, Testbed

pytestmark = pytest.mark.race

LEAVES = """
connection = connecting(expected_tpu_instances={"tpuv6e:2x2": 1}).start()
say("connected", name=connection.proxy_job_name)
wait_for("leave")
LEAVE
"""
CLOSE = "connection.close()"
#: Without closing. The exit waits for the agent, in vain.
END = 'os.environ["SPS_PATIENCE"] = "0.2"'


@pytest.fixture
def service(disturbed_testbed: Testbed) -> Iterator[DeployedService]:
    """A service of two slices, on a testbed that no other test uses meanwhile."""
    with served(disturbed_testbed) as made:
        yield made


def test_agents_delete_when_the_api_server_is_back(
    service: DeployedService, disturbed_testbed: Testbed
) -> None:
    with (
        client(service.namespace, LEAVES.replace("LEAVE", CLOSE)) as closing,
        client(service.namespace, LEAVES.replace("LEAVE", END)) as ending,
    ):
        name, left = (running.expect("connected")["name"] for running in (closing, ending))
        disturbed_testbed.kill_api_server()
        for running in (closing, ending):
            running.tell("leave")
        # Who ends without closing waits for a moment only, and is told.
        assert ending.wait() == 0
        assert "not confirmed deleted" in "".join(ending.stderr)
        # Who closes waits for as long as a deletion has, or they want.
        wait_until(
            "the deletion to be begun",
            lambda: any(entry.name == name and entry.state == "delete" for entry in journal()),
        )
        closing.signal(signal.SIGINT)
        assert closing.wait() == -signal.SIGINT
        entries = journal()
        assert {entry.name for entry in entries} == {name, left}
        assert all(entry.agent.is_alive() and not entry.owner.is_alive() for entry in entries)
        disturbed_testbed.start_api_server()
        wait_until("the agents to be done", lambda: not journal())
        all_free(service)
