"""connect() from a machine outside the cluster, as an ordinary tenant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.testbed.clients import KIND, client, nothing_left, tenant
from harness.testbed.kills import served
from shared_pathways_service.testing.testbed import Namespace, Testbed
from tests.testbed.second_reader import is_read_by_the_official_client

EXAMPLE = """
import contextlib, io, types
import examples.train_digits as example
example.isc_pathways = types.SimpleNamespace(connect=connecting)
with contextlib.redirect_stdout(io.StringIO()) as out:
    example.main()
say("trained", out=out.getvalue())
"""

HOLDER = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax, jax.numpy as jnp
    assert connection.namespace == os.environ["TEST_NAMESPACE"]
    x = jax.device_put(jnp.arange(8.0), connection.devices[0])
    say("holds", name=connection.proxy_job_name, pod=connection.proxy_pod_name,
        value=float((x * x).sum()))
    wait_for("leave")
say("left")
"""

THIRD = """
try:
    connecting(expected_tpu_instances={"tpuv6e:2x2": 1}).start()
except errors.SlicesTaken as error:
    say("taken", wanted=error.wanted, free=error.free, holders=list(error.holders))
def hear(event):
    if event.kind == "tenant.queued":
        say("queued", position=event.data["position"], holders=event.data["holders"])
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, queue_timeout=600,
                on_event=hear) as connection:
    import jax.numpy as jnp
    say("placed", value=float(jnp.ones(3).sum()), slices=[s.state for s in connection.slices])
"""


@pytest.fixture(scope="module")
def namespace(testbed: Testbed) -> Iterator[Namespace]:
    """The namespace of one service with two slices."""
    with served(testbed) as service:
        yield service.namespace


def test_a_tenant_trains_the_example_and_leaves_nothing(namespace: Namespace) -> None:
    variables = tenant(namespace)
    kubeconfig = Path(variables["KUBECONFIG"])
    before = kubeconfig.read_bytes()
    with client(namespace, EXAMPLE) as running:
        trained = running.expect("trained", timeout=deadline(300.0))
        assert running.wait() == 0
    found = re.search(r"held-out accuracy: ([\d.]+)", trained["out"])
    assert found
    assert float(found[1]) >= 0.95
    nothing_left(namespace)
    assert kubeconfig.read_bytes() == before
    assert not list(Path(variables["HOME"]).rglob("*"))


def test_three_tenants_on_two_slices(namespace: Namespace) -> None:
    with client(namespace, HOLDER) as first, client(namespace, HOLDER) as second:
        held = [first.expect("holds"), second.expect("holds")]
        assert [told["value"] for told in held] == [140.0, 140.0]
        # Two proxies on the one node that has no TPUs.
        pods = {pod["metadata"]["name"]: pod for pod in namespace.items("pods")}
        nodes = {pods[told["pod"]]["spec"]["nodeName"] for told in held}
        assert len(nodes) == 1
        for told in held:
            is_read_by_the_official_client(namespace, told["name"])
        with client(namespace, THIRD) as third:
            taken = third.expect("taken")
            assert taken["wanted"] == {KIND: 1}
            assert taken["free"].get(KIND, 0) == 0
            assert len(taken["holders"]) == 2
            queued = third.expect("queued")
            assert queued["position"] == 1
            assert len(queued["holders"].split("\n")) == 2
            first.tell("leave")
            first.expect("left")
            placed = third.expect("placed")
            assert (placed["value"], placed["slices"]) == (3.0, ["placed"])
            assert third.wait() == 0
        second.tell("leave")
        second.expect("left")
        assert (first.wait(), second.wait()) == (0, 0)
    nothing_left(namespace)
