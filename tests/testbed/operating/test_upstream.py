"""The commands and the example of upstream's README, with only the names of modules changed.

They are read from the installed pathwaysutils, and run against a cluster with the names that the
README has: Google's look-up and tokens and its images are stand-ins, Kubernetes is real.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from harness.processes import REPOSITORY
from harness.programs import DEADLINE_S
from harness.testbed.clients import KIND, home_of, nothing_left
from harness.upstream import service_file
from shared_pathways_service.agent import cloud_monitoring
from shared_pathways_service.kube import gke
from shared_pathways_service.manifests.image_names import proxy_image_for
from shared_pathways_service.manifests.service_inputs import DEFAULT_SERVER_IMAGE
from shared_pathways_service.testing.google import FakeCluster, FakeGoogle
from shared_pathways_service.testing.google_monitoring import FakeMonitoring
from shared_pathways_service.testing.testbed import Namespace, Testbed
from shared_pathways_service.testing.testbed.deployed_service import DeployedService

pytestmark = pytest.mark.race

THEIRS = "pathwaysutils.experimental.shared_pathways_service"
OURS = "shared_pathways_service"
#: As the README's last command has them.
CLUSTER = {"cluster": "my-cluster", "project": "my-project", "region": "cluster-region"}
SERVICE = "pathways-cluster"
VARIABLES = {
    "SERVICE_JOBSET_NAME": SERVICE,
    "GCS_BUCKET": "gs://user-bucket",
    "SERVER_IMAGE": DEFAULT_SERVER_IMAGE,
    "PROXY_IMAGE": proxy_image_for(DEFAULT_SERVER_IMAGE),
    "TPU_TYPE": "v6e",
    "TOPOLOGY": "2x2",
    "NUM_SLICES": "2",
    "CLUSTER_NAME": CLUSTER["cluster"],
    "PROJECT": CLUSTER["project"],
    "REGION": CLUSTER["region"],
}
WORKLOAD = "import jax, jax.numpy as jnp; print(jax.device_count(), jnp.arange(4.0).sum())"


def commands() -> list[str]:
    """Returns the README's command lines that run Python, without what is optional."""
    text = service_file("README.md").read_text(encoding="utf-8")
    blocks = [token.content.strip() for token in MarkdownIt().parse(text) if token.type == "fence"]
    return [re.sub(r"\[--[^]]*\]", "", b) for b in blocks if b.startswith("python3 ")]


def example(at: Path) -> Path:
    """Writes upstream's example with another import, and nothing else changed."""
    text = service_file("run_connect_example.py").read_text(encoding="utf-8")
    line = f"from {THEIRS} import isc_pathways\n"
    assert text.count(line) == 1
    at.write_text(text.replace(line, f"from {OURS} import isc_pathways\n"), encoding="utf-8")
    return at


@pytest.fixture
def namespace(
    own_testbed: Testbed, own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Namespace]:
    """The namespace `default`, which upstream knows alone, of the GKE cluster `my-cluster`."""
    default = Namespace(own_testbed, "default")
    own_testbed.add_pools({KIND: 2})
    known = FakeCluster(
        name=CLUSTER["cluster"],
        project=CLUSTER["project"],
        region=CLUSTER["region"],
        authority=own_testbed.authority.read_text(),
        public_endpoint=own_testbed.server.removeprefix("https://"),
    )
    token = default.user("tenant").token
    with (
        FakeGoogle([known], new_token=lambda: token) as google,
        FakeMonitoring(CLUSTER["project"]) as monitoring,
    ):
        credentials = own_directories / "credentials.json"
        google.write_credentials(credentials)
        tools = [_note_use(own_directories / "bin" / name) for name in ("gcloud", "kubectl")]
        programs = [str(tools[0].parent), str(Path(sys.executable).parent), os.environ["PATH"]]
        for name, value in {
            **VARIABLES,
            "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
            gke.ENDPOINT_VARIABLE: google.url,
            cloud_monitoring.ENDPOINT_VARIABLE: monitoring.url,
            "HOME": home_of(),
            "KUBECONFIG": str(default.kubeconfig_of("operator")),
            "PATH": os.pathsep.join(programs),
            "PYTHONPATH": str(REPOSITORY),
        }.items():
            monkeypatch.setenv(name, value)
        yield default
        assert not [tool for tool in tools if tool.with_suffix(".used").exists()]


def _note_use(tool: Path) -> Path:
    """Makes a program that notes that it was run."""
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f"#!/bin/sh\ntouch {tool}.used\nexit 1\n")
    tool.chmod(0o700)
    return tool


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done
    return done


@pytest.mark.thorough
def test_the_readmes_commands_from_the_first_to_the_last(
    namespace: Namespace, own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy, workload, connecting = commands()
    assert f"-m {THEIRS}.deploy_pathways_service" in deploy
    done = shell(deploy.replace(THEIRS, OURS), own_directories)
    assert f"{SERVICE} with {KIND}=2 was created" in done.stderr
    DeployedService(namespace, SERVICE).wait_until_ready()

    # A tenant has no kubeconfig: the cluster is found by its name.
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    (own_directories / "run_my_sample_workload.py").write_text(WORKLOAD)
    assert f"-m {THEIRS}.run_workload" in workload
    done = shell(workload.replace(THEIRS, OURS), own_directories)
    assert done.stdout == "8 6.0\n"
    nothing_left(namespace)

    # Which writes what happens to `logging`; absl shows it by a flag of its own.
    script = example(own_directories / "run_connect_example.py")
    theirs = f"{THEIRS.replace('.', '/')}/{script.name}"
    assert theirs in connecting
    assert connecting.count('"proxy_image"') == 1
    changed = connecting.replace(theirs, str(script)).replace('"proxy_image"', '"$PROXY_IMAGE"')
    done = shell(f"{changed} --verbosity=0", own_directories)
    assert "All devices are confirmed to be TPUs." in done.stdout
    assert "Original Matrix (on all 4 devices):" in done.stdout
    assert "array([1., 1., 1., 1.]" in done.stdout.partition("parallel addition:")[2]
    link = "View proxy logs in Cloud Logging: https://console.cloud.google.com/logs/query;query="
    assert link in done.stderr
    assert "TPU placement for 1 slice(s) complete!" in done.stderr
    assert "Interactive supercomputing proxy client ready for cluster 'my-cluster'." in done.stderr
    nothing_left(namespace)
