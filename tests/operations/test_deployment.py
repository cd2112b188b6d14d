"""The JobSets that are sent to the cluster for a service."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import pytest

from shared_pathways_service.cluster_state.service_reading import recorded_spec
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.command_place import CommandPlace
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.manifests.names import LABEL_SESSION
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.deployment import create, create_again, try_to_create
from tests.kube.nowhere import NowhereApi

OURS = ServiceInputs(
    name="pw",
    namespace="team-a",
    instances={"tpuv6e:2x2": 2},
    image="r.io/shared-pathways-service/server:1",
    labels={"cost/center": "7"},
)


class Api:
    """An API server that answers each request with the JobSet that was sent."""

    async def create(self, _path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return body

    async def request(
        self, method: str, _path: str, *, body: Mapping[str, Any], params: Mapping[str, str]
    ) -> Mapping[str, Any]:
        assert (method, params) == ("POST", {"dryRun": "All"})
        return body


CLUSTER = Cluster(cast("KubeApi", Api()), "team-a")


def without_unique_values(jobset: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = jobset["metadata"]
    labels = {**metadata["labels"]}
    assert labels.pop(LABEL_SESSION)
    return {**jobset, "metadata": {**metadata, "name": "", "labels": labels}}


def test_a_dry_run_sends_what_is_created_except_for_the_name() -> None:
    tried = asyncio.run(try_to_create(CLUSTER, OURS))
    made = asyncio.run(create(CLUSTER, OURS))
    assert tried["metadata"]["name"] != made["metadata"]["name"] == "pw"
    assert recorded_spec(tried) == made["spec"]
    assert without_unique_values(tried) == without_unique_values(made)


def test_a_name_that_is_taken_is_refused_with_commands_for_its_cluster() -> None:
    class Taken(NowhereApi):
        async def create(
            self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None
        ) -> dict[str, Any]:
            raise ApiError("taken", status=409, reason="AlreadyExists")

    api = Taken()
    api.access = dataclasses.replace(api.access, commands=CommandPlace(context="dev"))
    with pytest.raises(InvalidRequestError) as caught:
        asyncio.run(create(Cluster(api, "team-a"), OURS))
    place = "--context=dev --namespace=team-a"
    assert f"`sps upgrade pw {place}` changes" in caught.value.hint
    assert f"`sps undeploy pw {place}` deletes" in caught.value.hint


def test_a_dry_run_of_a_spec_records_it() -> None:
    spec = {**service_jobset(OURS)["spec"], "suspend": True}
    tried = asyncio.run(try_to_create(CLUSTER, OURS, spec))
    assert tried["spec"] == recorded_spec(tried) == spec


def test_a_jobset_that_is_created_again_keeps_its_record_and_has_a_new_session() -> None:
    old = asyncio.run(create(CLUSTER, OURS))
    sent = recorded_spec(old)
    edited = {**old, "spec": {**old["spec"], "suspend": True}}
    made = asyncio.run(create_again(CLUSTER, edited))
    assert made["spec"] == edited["spec"]
    assert recorded_spec(made) == sent
    assert without_unique_values(made) == without_unique_values(edited)
    assert made["metadata"]["labels"][LABEL_SESSION] != old["metadata"]["labels"][LABEL_SESSION]
