"""An API server that has an IPv6 address only, as in a cluster without IPv4."""

from __future__ import annotations

import socket

import pytest

from harness.layers.thorough import thorough
from harness.programs import program, sps_json
from harness.testbed.clients import PRELUDE, deployed, nothing_left, tenant
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.kubeconfig import write_kubeconfig
from tests.testbed.faulty_way import faulty_way

CLIENT = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, link=os.environ["TEST_LINK"]) as c:
    import jax.numpy as jnp
    say("serving", value=float(jnp.ones(3).sum()), name=c.proxy_job_name)
    wait_for("leave")
say("left")
"""


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize("link", ["resumable", *thorough("plain")])
def test_a_connection_by_an_ipv6_address(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    deployed(namespace, 1)
    user, testbed = namespace.user("tenant"), namespace.testbed
    variables = {**tenant(namespace), "TEST_LINK": link}
    path = testbed.directory / f"{namespace.name}-ipv6.kubeconfig"
    asked: set[str] = set()

    def judge(method: str, path: str) -> None:
        asked.add(f"{method} {path.partition('?')[0].rpartition('/')[2]}")

    with faulty_way(testbed, judge, host="::1") as url:
        assert url.startswith("https://[::1]:")
        write_kubeconfig(path, url, testbed.authority, user, namespace=namespace.name)
        variables["KUBECONFIG"] = str(path)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with program(PRELUDE + CLIENT) as running:
            serving = running.expect("serving")
            assert serving["value"] == 3.0
            place = ["--context=testbed", f"--namespace={namespace.name}"]
            [held] = sps_json("status", *place)["slices"]
            assert held["tenant"] == serving["name"]
            [listed] = sps_json("list")
            assert listed["name"] == serving["name"]
            running.tell("leave")
            running.expect("left")
            assert running.wait() == 0
        nothing_left(namespace)
    # (All of it went that way.)
    assert {"GET portforward", "POST jobs", f"DELETE {serving['name']}"} <= asked
