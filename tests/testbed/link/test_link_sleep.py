"""A laptop sleeps: its client and agent are stopped, and their connections break meanwhile."""

from __future__ import annotations

import contextlib
import time

import pytest

from harness.deadlines import wait_until
from harness.testbed.clients import nothing_left
from harness.testbed.link_clients import LinkClient, check_end, link_client
from harness.testbed.link_faults import asleep, survived
from harness.testbed.plugin import IMAGES
from harness.testbed.ways import Way, open_way
from shared_pathways_service.constants import PROXY_DEADLINE_PUSH_S
from shared_pathways_service.kube.paths import item
from shared_pathways_service.manifests.lifetime import deadline_patch
from shared_pathways_service.testing.testbed import Namespace
from tests.testbed.link.conftest import ServiceOf

pytestmark = pytest.mark.race

#: Longer than what counts as a sleep, which is no time-out, and so not scaled by SPS_PATIENCE.
ASLEEP_S = 31.0
#: What the client asks for whose proxy ends.
KEEP_FOR_S = 60.0


@pytest.mark.timeout(600)
def test_sleeps_within_keep_for_and_longer(service_of: ServiceOf) -> None:
    namespaces = [service_of(images).namespace for images in IMAGES]
    ours = service_of("ours").namespace
    with contextlib.ExitStack() as stack:

        def started(namespace: Namespace, keep_for: str) -> tuple[LinkClient, Way]:
            way = stack.enter_context(open_way(namespace))
            return stack.enter_context(link_client(namespace, way, keep_for=keep_for)), way

        kept = [started(namespace, "5m") for namespace in namespaces]
        ended, its_way = started(ours, f"{KEEP_FOR_S:g}s")
        before = [client.step() for client, _ in [*kept, (ended, its_way)]]
        for client, _ in kept:
            client.ask_for_step()
        # (At the same time, because it takes so long.)
        with contextlib.ExitStack() as lids:
            for client, way in [*kept, (ended, its_way)]:
                lids.enter_context(asleep(client, way))
            pass_deadline(ours, ended.name)
            time.sleep(ASLEEP_S)
            # The cluster itself ended the proxy, whose client does not wake up.
            wait_until("the proxy's end", lambda: ended.name not in " ".join(ours.processes()))
        for (client, _), steps in zip(kept, before, strict=False):
            client.stepped()
            assert survived(steps, client.stop()).losses >= 1
        _, error = ended.failed()
        assert ended.name in error["message"]
        check_end(error, "was ended")
        assert "connect again" in error["hint"]
    for namespace in namespaces:
        nothing_left(namespace)


def pass_deadline(namespace: Namespace, name: str) -> None:
    """Checks that a Job's deadline is as far ahead as `KEEP_FOR_S` says, and lets it pass now."""
    [job] = namespace.items("batch/v1/jobs", fieldSelector=f"metadata.name={name}")
    # (It counts from the Job's start; the last sign of life may come before an extension.)
    assert job["spec"]["activeDeadlineSeconds"] >= KEEP_FOR_S + PROXY_DEADLINE_PUSH_S
    patch = deadline_patch(1, job["metadata"]["uid"])
    namespace.testbed.api.patch(item("jobs", namespace.name, name), patch)
