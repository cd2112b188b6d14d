"""Tests of any cluster with a service (``--kube-context``); `test_kube_context` runs them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from harness.programs import sps
from harness.testbed.plugin import SharedCluster
from shared_pathways_service.cli.verification import CHECKS
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterChoice
from shared_pathways_service.kube.paths import collection
from shared_pathways_service.manifests.names import HEAD_JOB
from shared_pathways_service.manifests.permissions import evaluate, needed, rules_review

#: Seven connections in a row.
VERIFICATION_S = 400.0

pytestmark = pytest.mark.safe_on_shared


def _choice(cluster: SharedCluster) -> ClusterChoice:
    named = {"context": "", "cluster": "", "project": "", "region": "", **cluster.named}
    return ClusterChoice(
        context=named["context"],
        cluster=named["cluster"],
        project=named["project"],
        region=named["region"],
    )


async def _ask(cluster: SharedCluster) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    access = await resolve(_choice(cluster))
    async with KubeApi(access) as api:
        jobsets = await api.get(collection("jobsets", cluster.namespace))
        review = await api.request(
            "POST", collection("selfsubjectrulesreviews"), body=rules_review(cluster.namespace)
        )
    return jobsets["items"], review


def test_tenant_finds_the_service_and_may_use_it(shared_cluster: SharedCluster) -> None:
    jobsets, review = asyncio.run(_ask(shared_cluster))
    heads = [
        jobset["metadata"]["name"]
        for jobset in jobsets
        if any(job["name"] == HEAD_JOB for job in jobset["spec"]["replicatedJobs"])
    ]
    assert heads, f"no service in namespace {shared_cluster.namespace}"
    assert evaluate(review, needed(ours=False)).missing == ()


def test_verification_passes(shared_cluster: SharedCluster) -> None:
    done = sps("verify", *shared_cluster.options, "--json", check=False, timeout=VERIFICATION_S)
    told = json.loads(done.stdout)
    assert [check["name"] for check in told["checks"]] == list(CHECKS)
    assert {check["name"]: check for check in told["checks"] if check["outcome"] != "passed"} == {}
