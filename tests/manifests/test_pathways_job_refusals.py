"""PathwaysJobs that are refused, with their messages."""

from __future__ import annotations

from typing import Any

import pytest

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.pathways_job import render_pathways_job
from tests.manifests.pathways_jobs import ALL_OURS, MAIN, manifest

# ---- what is refused


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"top__apiVersion": "v1"}, "apiVersion", "pathways-job.pathways.domain/v1"),
        ({"top__extra": 1}, "extra", "unknown field extra"),
        ({"metadata__name": None}, "metadata.name", "a DNS label"),
        ({"metadata__name": "n" * 23}, "metadata.name", "at most 22"),
        ({"metadata__labels": {"a": 1}}, "metadata.labels.a", "need quotes"),
        ({"spec__maxRestart": 1}, "spec.maxRestart", "did you mean maxRestarts?"),
        ({"spec__maxRestarts": "3"}, "spec.maxRestarts", "whole number from 0"),
        ({"spec__maxRestarts": True}, "spec.maxRestarts", "whole number from 0"),
        ({"spec__pathwaysDir": "s3://b"}, "spec.pathwaysDir", "gs://NAME"),
        ({"spec__pathwaysVersion": 0.9}, "spec.pathwaysVersion", "a text"),
        ({"spec__pathwaysVersion": "a:b"}, "spec.pathwaysVersion", "tag"),
        ({"spec__workers": None}, "spec.workers", "a list of one item"),
        ({"spec__workers": [{}, {}]}, "spec.workers", "a list of one item"),
        ({"spec__workers": [3]}, "spec.workers[0]", "an object"),
        ({"workers__type": None}, "spec.workers[0].type", "ct5lp-hightpu-4t"),
        ({"workers__type": "ct5lp-hightpu-1t"}, "spec.workers[0].type", "ct5lp-hightpu-4t"),
        ({"workers__topology": "4x4x4"}, "spec.workers[0].topology", "4x8, 8x8, 8x16 or 16x16"),
        ({"workers__topology": "3x4"}, "spec.workers[0].topology", "ct5lp-hightpu-4t: 2x2"),
        ({"workers__topology": 48}, "spec.workers[0].topology", "4x8"),
        (
            {"workers__type": "ct5lp-hightpu-8t"},
            "spec.workers[0].topology",
            "a topology of ct5lp-hightpu-8t: 2x4",
        ),
        (
            {"workers__type": "ct5p-hightpu-4t", "workers__topology": "4x4x6"},
            "spec.workers[0].topology",
            "multiples of 4",
        ),
        (
            {"workers__type": "ct5p-hightpu-4t", "workers__topology": "8x4x4"},
            "spec.workers[0].topology",
            "the smallest first",
        ),
        ({"workers__numSlices": None}, "spec.workers[0].numSlices", "from 1"),
        ({"workers__numSlices": 0}, "spec.workers[0].numSlices", "from 1"),
        ({"workers__maxSliceRestarts": -1}, "spec.workers[0].maxSliceRestarts", "from 0"),
        (
            {"workers__terminationGracePeriodSeconds": 1.5},
            "spec.workers[0].terminationGracePeriodSeconds",
            "whole number",
        ),
        ({"workers__nodeSelector": {"a": True}}, "spec.workers[0].nodeSelector.a", "quotes"),
        ({"workers__priorityClass": "x"}, "spec.workers[0].priorityClass", "priorityClassName?"),
        ({"spec__controller": None}, "spec.controller", "an object"),
        ({"controller__deploymentMode": None}, "spec.controller.deploymentMode", "default"),
        (
            {"controller__deploymentMode": "colocate"},
            "spec.controller.deploymentMode",
            "colocate_head_with_workers",
        ),
        ({"controller__elasticSlices": 3}, "spec.controller.elasticSlices", "from 0 to 2"),
        ({"controller__elasticslices": 1}, "spec.controller.elasticslices", "elasticSlices?"),
        (
            {"controller__mainContainerName": "mian"},
            "spec.controller.mainContainerName",
            "a container of the template: main",
        ),
        ({"controller__template": {}}, "spec.controller.template.spec", "a pod's spec"),
        (
            {"controller__template": {"spec": {"containers": []}}},
            "spec.controller.template.spec.containers",
            "at least one container",
        ),
        (
            {"controller__template": {"spec": {"containers": [MAIN, {"name": "pathways-rm"}]}}},
            "spec.controller.template.spec.containers[1].name",
            "another name",
        ),
        (
            {
                "controller__template": {
                    "spec": {"containers": [{**MAIN, "env": [{"name": "A", "value": 1}]}]}
                }
            },
            "spec.controller.template.spec.containers[0].env[0].value",
            "quotes",
        ),
        (
            {"controller__enableMetricsCollection": True, "spec__customComponents": ALL_OURS},
            "spec.controller.enableMetricsCollection",
            "false with the image",
        ),
        (
            {"spec__customComponents": [{"componentType": "proxy"}]},
            "spec.customComponents[0].componentType",
            "proxy_server",
        ),
        (
            {"spec__customComponents": [ALL_OURS[0], ALL_OURS[0]]},
            "spec.customComponents[1].componentType",
            "each part once",
        ),
        (
            {"spec__customComponents": [{"componentType": "colocated_python_sidecar"}]},
            "spec.customComponents[0].image",
            "an image",
        ),
        (
            {"spec__customComponents": [{"componentType": "worker", "customFlags": "--a"}]},
            "spec.customComponents[0].customFlags",
            "a list",
        ),
        (
            {"spec__customComponents": [{"componentType": "worker", "flags": []}]},
            "spec.customComponents[0].flags",
            "did you mean customFlags?",
        ),
    ],
)
def test_wrong_fields_are_named(changes: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render_pathways_job(manifest(**changes))
    assert caught.value.field == field
    assert field in caught.value.message
    assert said in str(caught.value)
