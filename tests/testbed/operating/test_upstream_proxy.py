"""A proxy as upstream's own manifest has it, and a client that knows nothing of this package."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.foreign import environment_without_us
from shared_pathways_service.manifests.service_inputs import DEFAULT_SERVER_IMAGE
from shared_pathways_service.testing.testbed import Namespace, deploy_service
from tests.testbed.upstream_jobs import running_pod, upstream_job

CLIENT = """
import importlib.util
assert importlib.util.find_spec("shared_pathways_service") is None
import pathwaysutils
pathwaysutils.initialize()
import jax
import jax.numpy as jnp
devices = jax.devices()
print(len(devices), devices[0].device_kind, sorted({d.slice_index for d in devices}))
sharded = jax.device_put(jnp.arange(16.0), devices[5])
print(float(jax.jit(lambda x: (x * 2).sum())(sharded)))
"""


@contextlib.contextmanager
def forwarded(namespace: Namespace, job: str) -> Iterator[int]:
    """Forwards a port of this machine's to a Job's 29000, as kubectl does."""
    config = f"--kubeconfig={namespace.kubeconfig_of('tenant')}"
    command = ["kubectl", config, "port-forward", f"job/{job}", ":29000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+) -> 29000", forward.stdout.readline())
            assert found is not None
            yield int(found[1])
        finally:
            forward.terminate()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
@pytest.mark.thorough
def test_pathwaysutils_computes_on_upstreams_proxy(namespace: Namespace, tmp_path: Path) -> None:
    namespace.add_nodes({"tpuv6e:2x2": 2}, cpu_nodes=0)
    service = deploy_service(namespace, {"tpuv6e:2x2": 2}, image=DEFAULT_SERVER_IMAGE)
    job = namespace.create("batch/v1/jobs", upstream_job(service.address))
    pod = running_pod(namespace, job["metadata"]["name"])
    namespace.wait_for_log(pod, "Transition slice 1 unplaced -> placed")
    with forwarded(namespace, job["metadata"]["name"]) as port:
        done = subprocess.run(
            [environment_without_us(tmp_path / "environment"), "-P", "-c", CLIENT],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "JAX_PLATFORMS": "proxy",
                "JAX_BACKEND_TARGET": f"grpc://127.0.0.1:{port}",
                "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
            },
            capture_output=True,
            text=True,
            timeout=deadline(180.0),
            check=False,
        )
    assert done.stdout.splitlines() == ["8 TPU v6 lite [0, 1]", "240.0"], done.stderr
