"""GKE's and xpk's names of slices, from what a user types to slices that compute."""

from __future__ import annotations

import sys

import pytest
import yaml

from harness.embedded import embedded, eventually, nothing_left
from harness.programs import program, sps

#: Of the embedded service's type, tpuv6e:2x2.
NAMES = ("v6e-4", "ct6e-standard-4t:2x2", "v6e:2x2")
SOURCE = f"""
for name in {NAMES!r}:
    with isc_pathways.connect(expected_tpu_instances={{name: 1}}) as connection:
        import jax, jax.numpy as jnp
        say("holds", sum=float(jnp.arange(4.0).sum()), devices=len(connection.devices),
            asked=dict(connection.expected_tpu_instances),
            kinds=[s.instance_type for s in connection.slices])
"""
COUNT = "import jax; print(jax.device_count())"


def test_connect_and_run_take_slices_by_any_name() -> None:
    with embedded(1):
        with program(SOURCE) as client:
            for _ in NAMES:
                held = client.expect("holds")
                assert held["asked"] == {"tpuv6e:2x2": 1}
                assert (held["devices"], held["kinds"]) == (4, ["tpuv6e:2x2"])
                assert held["sum"] == 6.0
            assert client.wait() == 0
        for words in (("--slices=v6e-4=1",), ("--tpu_type=ct6e-standard-4t:2x2", "--tpu_count=1")):
            assert sps("run", *words, "--", sys.executable, "-c", COUNT).stdout == "4\n"
        eventually(nothing_left, "all to be gone")


@pytest.mark.parametrize(
    ("name", "kind", "hosts", "label"),
    [
        ("ct6e-standard-4t:4x4", "tpuv6e:4x4", 4, "tpu-v6e-slice"),
        ("v6e-16", "tpuv6e:4x4", 4, "tpu-v6e-slice"),
        ("v5litepod-16", "tpuv5e:4x4", 4, "tpu-v5-lite-podslice"),
        ("v5p-8", "tpuv5:2x2x1", 1, "tpu-v5p-slice"),
        ("tpu7x-8", "tpu7x:2x2x1", 1, "tpu7x"),
    ],
)
def test_deploy_takes_slices_by_any_name(name: str, kind: str, hosts: int, label: str) -> None:
    made = sps("deploy", "pw", f"--slices={name}=1", "--dry-run").stdout
    head, worker = yaml.safe_load(made)["spec"]["replicatedJobs"]
    [manager] = head["template"]["spec"]["template"]["spec"]["containers"]
    assert f"--instance_type={kind}" in manager["args"]
    job = worker["template"]["spec"]
    assert (job["completions"], worker["replicas"]) == (hosts, 1)
    pod = job["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": kind.partition(":")[2],
    }
    assert pod["containers"][0]["resources"] == {"limits": {"google.com/tpu": "4"}}
