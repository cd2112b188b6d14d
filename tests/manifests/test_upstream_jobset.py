"""The JobSet of `sps deploy` beside upstream's, field by field; differences are in a table."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service.manifests.machine_types import slice_type
from shared_pathways_service.manifests.names import is_worker_job
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset

TABLE = tomllib.loads((Path(__file__).parent / "upstream_jobset.toml").read_text())
#: What stands for the beginnings and middles of paths.
SHORT = {
    "spec.replicatedJobs[pathways-head].template": "head",
    "spec.replicatedJobs[worker].template": "worker",
    ".spec.template.spec.": ".pod.",
    ".spec.template.metadata.": ".pod.metadata.",
    "initContainers[colocated-python-sidecar]": "sidecar",
}
#: What tells the items of a list apart, in this order.
KEYS = ("mountPath", "containerPort", "name", "key")
CASES = [
    ("v6e", "2x2", ""),
    ("v5e", "4x8", "r.io/sidecar:jax-0.9.0"),
    ("v5p", "2x2x2", ""),
    ("tpu7x", "2x2x4", "r.io/sidecar:jax-0.9.0"),
]

Fields = dict[str, Any]


def fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Returns all values by their paths; items of lists by what tells them apart."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from fields(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, str):
                flag, _, text = item.partition("=")
                yield f"{path}[{flag}]", text
            elif item.keys() == {"name", "value"}:
                yield f"{path}[{item['name']}]", item["value"]
            else:
                yield from fields(item, f"{path}[{_key(item)}]")
    else:
        yield path, value


def by_path(jobset: Mapping[str, Any]) -> Fields:
    """Returns all fields of a JobSet."""
    found = {}
    for path, value in fields(jobset):
        found[functools.reduce(lambda text, pair: text.replace(*pair), SHORT.items(), path)] = value
    return found


def _key(item: Mapping[str, Any]) -> str:
    key = str(next(item[name] for name in KEYS if name in item))
    return "worker" if is_worker_job(key) and "replicas" in item else key


@functools.cache
def theirs(tpu_type: str, topology: str, sidecar: str) -> Fields:
    arguments = {
        "tpu_type": tpu_type,
        "topology": topology,
        "num_slices": 3,
        "jobset_name": "pw",
        "gcs_bucket": "gs://my-bucket",
        "server_image": "r.io/server:jax-0.9.0",
        "sidecar_image": sidecar,
        "max_restarts": 30,
    }
    made = subprocess.run(
        [sys.executable, "-m", "tests.manifests.upstream_jobset", json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return by_path(json.loads(made.stdout))


def ours(tpu_type: str, topology: str, sidecar: str) -> Fields:
    kind = slice_type(tpu_type, topology, type_field="--tpu_type", topology_field="--topology")
    inputs = ServiceInputs(
        name="pw",
        instances={str(kind): 3},
        gcs_bucket="gs://my-bucket",
        image="r.io/server:jax-0.9.0",
        sidecar_image=sidecar,
        max_restarts=30,
    )
    return by_path(service_jobset(inputs))


def differences(case: tuple[str, str, str]) -> dict[str, tuple[Any, Any]]:
    mine, upstreams = ours(*case), theirs(*case)
    paths = mine.keys() | upstreams.keys()
    pairs = {path: (upstreams.get(path), mine.get(path)) for path in paths}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


#: By path, upstream's value and ours; None: the field is not there.
DELIBERATE = {row["field"]: (row.get("upstream"), row.get("ours")) for row in TABLE["difference"]}


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_every_difference_from_upstream_is_deliberate(case: tuple[str, str, str]) -> None:
    found = differences(case)
    assert found == {path: DELIBERATE.get(path) for path in found}
    assert len(theirs(*case)) > 60


def test_no_difference_of_the_table_is_gone() -> None:
    found = [path for case in CASES for path in differences(case)]
    assert sorted(DELIBERATE) == sorted(set(found))
    assert len(DELIBERATE) == len(TABLE["difference"])
    assert all(row["reason"] for row in (*TABLE["difference"], *TABLE["manifest"]))


@pytest.mark.parametrize("row", TABLE["manifest"], ids=[row["field"] for row in TABLE["manifest"]])
def test_what_manifests_have_is_carried_or_left_out_for_a_reason(row: Mapping[str, Any]) -> None:
    found = ours("v6e", "4x4", "r.io/sidecar:jax-0.9.0").get(row["field"])
    assert (found is not None) == row["carried"], found
