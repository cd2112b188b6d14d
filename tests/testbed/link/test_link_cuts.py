"""The connections of a link are cut at random moments: no session is lost, no bit is wrong."""

from __future__ import annotations

import random

import pytest

from harness.testbed.clients import nothing_left
from harness.testbed.link_clients import link_client
from harness.testbed.link_faults import cut_at_random, survived
from harness.testbed.ways import open_way
from shared_pathways_service.testing.testbed import DeployedService

pytestmark = pytest.mark.race

CUTS = 40


@pytest.mark.timeout(900)
def test_cuts_at_random_moments(any_service: DeployedService) -> None:
    namespace = any_service.namespace
    with open_way(namespace) as way, link_client(namespace, way) as client:
        before = client.step()
        cut_at_random(client, way, CUTS, random.Random(1))
        client.step()
        outcome = survived(before, client.stop())
        # (A link that was not resumed yet cannot be lost again.)
        assert 0 < outcome.losses <= CUTS
        assert outcome.dials >= outcome.losses
    nothing_left(namespace)
