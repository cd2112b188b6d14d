"""`docs/operations.md`: its commands do what it says, from top to bottom, in a real cluster."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import REPOSITORY
from harness.programs import DEADLINE_S, sps
from harness.testbed.clients import home_of
from harness.testbed.crew import COMMAND, IMAGE
from shared_pathways_service.manifests.hotswap_jobset import HIGH, LOW, hotswap_jobset
from shared_pathways_service.manifests.priority_classes import priority_classes
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.kubeconfig import CONTEXT
from tests.testbed.roles import create_once

pytestmark = pytest.mark.race

TEXT = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
JOBSETS = "jobset.x-k8s.io/v1alpha2/jobsets"
POOL = "cloud.google.com/gke-nodepool"
#: Of what is the whole cluster's, there may be some already, of another namespace's tests.
THERE = "AlreadyExists"


def commands() -> list[str]:
    return [line.strip() for line in TEXT.splitlines() if re.match(r" {4}(sps|kubectl) ", line)]


def test_every_command_that_is_mentioned_exists() -> None:
    helps: dict[str, str] = {}
    for words in re.findall(r"`(sps [a-z][^`]*)`", TEXT):
        _, command, *rest = words.split()
        if command not in helps:
            helps[command] = sps(command, "--help").stdout
        options = {word.partition("=")[0] for word in rest if word.startswith("-")}
        shown = helps[command].replace("_", "-")
        assert not [option for option in options if f"{option} " not in f"{shown} "], words


def test_what_xpk_takes_is_mapped_to_options_that_there_are() -> None:
    text = (REPOSITORY / "docs" / "xpk.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `--")]
    assert len(rows) > 10
    shown = sps("deploy", "--help").stdout + sps("render", "--help").stdout
    shown = shown.replace("_", "-")
    for _, ours, _ in rows:
        # (Not what a proxy or an image is told.)
        for option in re.findall(r"(?<![\w:-])--[a-z][a-z-]+", ours):
            assert re.search(rf"{option}(?![\w-])", shown), option


@pytest.fixture
def shell(namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with `sps`, and the cluster's administrator's kubeconfig in the environment."""
    program = tmp_path / "bin" / "sps"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m shared_pathways_service.cli "$@"\n')
    program.chmod(0o755)
    testbed = namespace.testbed
    kubeconfig = testbed.kubeconfig_of(testbed.admin, namespace=namespace.name)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("HOME", home_of())
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program.parent


@pytest.mark.usefixtures("shell")
@pytest.mark.thorough
def test_its_commands_do_what_it_says(namespace: Namespace) -> None:
    namespace.add_nodes({"tpuv6e:2x2": 2, "tpuv6e:4x4": 3}, cpu_nodes=0)
    # The recipe's own program installs JAX for TPUs. What is there stays as it is.
    for one in priority_classes():
        create_once(namespace, "/apis/scheduling.k8s.io/v1/priorityclasses", one)
    program = {"namespace": namespace.name, "image": IMAGE, "command": COMMAND}
    for inputs in (LOW, HIGH):
        namespace.create(JOBSETS, hotswap_jobset(dataclasses.replace(inputs, **program)))  # type: ignore[arg-type]
    told = {command: _run(namespace, command) for command in commands()}

    def of(begin: str) -> str:
        return next(out for command, out in told.items() if command.startswith(begin))

    assert "kind: JobSet" in of("sps deploy")
    assert of("sps deploy pathways --slices tpuv6e:2x2=2 --gcs-bucket gs://my-bucket").strip()
    assert "ready" in of("sps status")
    assert "0 failed" in of("sps doctor") or "failed" not in of("sps doctor")
    assert "2/2 Pathways Slices Now Ready" in of("sps logs")
    assert "server:jax-0.12.0.1" in of("sps upgrade pathways --jax-version")
    assert f"{HIGH.name} was ready again after" in of("sps hotswap")
    assert "deleted pathways" in of("sps undeploy")
    # Nothing of the service is left; the JobSets that hotswap are somebody's.
    left = [thing["metadata"]["name"] for thing in namespace.items(JOBSETS)]
    assert sorted(left) == [HIGH.name, LOW.name]


def _run(namespace: Namespace, command: str) -> str:
    """Runs a command as a person would, with this test's names in place of those of the text."""
    here = {"my-cluster": CONTEXT, "team-a": namespace.name}
    if "my-pool" in command:
        here["my-pool"] = _pool_of(namespace, HIGH.name)
    for name, value in here.items():
        command = command.replace(name, value)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=REPOSITORY,
    )
    lines = [line for line in done.stderr.splitlines() if "rror" in line]
    repeated = bool(lines) and all(THERE in line for line in lines)
    assert done.returncode == 0 or repeated, (command, done.stdout, done.stderr)
    return done.stdout


def _pool_of(namespace: Namespace, jobset: str) -> str:
    def ready(pods: object) -> str | None:
        assert isinstance(pods, list)
        names = [pod["spec"].get("nodeName") for pod in pods]
        return names[0] if names and all(names) else None

    selector = f"jobset.sigs.k8s.io/jobset-name={jobset}"
    node = namespace.wait_until("pods", ready, what="bound pods", labelSelector=selector)
    found = namespace.testbed.api.get(f"/api/v1/nodes/{node}")
    return str(found["metadata"]["labels"][POOL])
