"""What can be imported, and what importing it costs."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shared_pathways_service
from shared_pathways_service import errors, isc_pathways

pytestmark = pytest.mark.real_starts

#: None of these is wanted by a program that only imports us.
HEAVY = (
    "jax",
    "jaxlib",
    "grpc",
    "google.protobuf",
    "kubernetes",
    "prometheus_client",
    "psutil",
    "rich",
    "typer",
)


def modules_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nimport json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", [shared_pathways_service, isc_pathways, errors])
def test_all_is_sorted_and_there(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert names == sorted(names)
    for name in names:
        assert getattr(module, name) is not None


def test_the_door_has_every_error() -> None:
    public = set(errors.__all__) - {"from_json"}
    assert public <= set(shared_pathways_service.__all__)
    assert set(shared_pathways_service.__all__) <= set(dir(shared_pathways_service))


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        shared_pathways_service.nonsense  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import shared_pathways_service",
        "from shared_pathways_service import *",
        "from shared_pathways_service import isc_pathways",
        "from shared_pathways_service import connect; connect(priority=1)",
    ],
)
def test_importing_and_asking_brings_nothing_heavy(code: str) -> None:
    loaded = modules_after(code)
    assert "shared_pathways_service" in loaded
    assert not loaded & set(HEAVY)


def test_the_agent_starts_without_what_it_may_not_need() -> None:
    assert not modules_after("import shared_pathways_service.agent.__main__") & set(HEAVY)


def test_the_version_is_the_one_that_the_build_reads() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    path = Path(__file__).parents[1] / project["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{shared_pathways_service.__version__}"' in path.read_text()
