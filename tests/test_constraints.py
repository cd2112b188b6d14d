"""constraints.txt holds for each supported Python, and scripts/constraints writes it."""

from __future__ import annotations

import runpy
import tomllib

import pytest
from packaging.requirements import Requirement

from harness.processes import REPOSITORY
from shared_pathways_service.api.faulty_jax import FAULTY_RELEASES

_SCRIPT = runpy.run_path(str(REPOSITORY / "scripts" / "constraints.py"))
pins_of, rendered = _SCRIPT["pins_of"], _SCRIPT["rendered"]
CONSTRAINTS = (REPOSITORY / "constraints.txt").read_text()
PYTHONS = [(3, 11), (3, 12), (3, 13), (3, 14)]


@pytest.mark.parametrize("python", PYTHONS)
def test_no_python_gets_a_faulty_release_of_jax(python: tuple[int, ...]) -> None:
    pins = pins_of(CONSTRAINTS, python)
    assert pins["jax"] == pins["jaxlib"]
    assert pins["jax"] not in FAULTY_RELEASES


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_has_a_version_that_the_project_allows(python: tuple[int, ...]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    pins = pins_of(CONSTRAINTS, python)
    optional = [text for group in project["optional-dependencies"].values() for text in group]
    for requirement in map(Requirement, [*project["dependencies"], *optional]):
        if requirement.name != project["name"]:
            assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement


def test_pip_reads_the_markers_as_the_script_does() -> None:
    for line in CONSTRAINTS.splitlines():
        if line.startswith("#"):
            continue
        marker = Requirement(line).marker
        for python in PYTHONS:
            environment = {"python_version": ".".join(map(str, python))}
            is_meant = marker is None or marker.evaluate(environment)
            assert is_meant == bool(pins_of(line, python)), (line, python)


def test_lines_have_markers_where_pythons_differ() -> None:
    text = rendered(
        {
            (3, 13): {"a": "2", "b": "1", "d": "3"},
            (3, 11): {"a": "1", "b": "1", "c": "5", "d": "1"},
            (3, 12): {"a": "2", "b": "1", "d": "2"},
        }
    )
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'a==1; python_version < "3.12"',
        'a==2; python_version >= "3.12"',
        "b==1",
        "c==5",
        'd==1; python_version < "3.12"',
        'd==2; python_version >= "3.12" and python_version < "3.13"',
        'd==3; python_version >= "3.13"',
    ]
    assert pins_of(text, (3, 11)) == {"a": "1", "b": "1", "c": "5", "d": "1"}
    assert pins_of(text, (3, 12)) == {"a": "2", "b": "1", "c": "5", "d": "2"}


def test_other_lines_are_refused() -> None:
    with pytest.raises(ValueError, match="'a>=1' was not written by scripts/constraints"):
        pins_of("a>=1", (3, 11))
