"""A pytest plug-in that gives each test the marker of its layer: unit, local, testbed or long.

A test is of layer ``testbed`` if one of its fixtures needs the control plane's programs. It is of
layer ``local`` if it can start a process, or a server with JAX, by what its code and its fixtures
reach; in a folder of long tests it is then of layer ``long``. Every other test is of layer
``unit``, and fails if it starts a process after all. `@pytest.mark.local` and the like overrule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from harness.layers.process_starts import noticing_process_starts
from harness.layers.reach import Reach

__all__ = ["LAYERS", "layer_of"]

LAYERS = {
    "unit": "pure code, and what runs in the test's own process",
    "local": "starts processes, servers or JAX programs on this machine",
    "testbed": "needs the real Kubernetes control plane of docs/testbed.md",
    "long": "stress, images and repetitions: not part of scripts/test without --all",
}

#: The fixture that all fixtures of the control plane depend on.
_CONTROL_PLANE = "testbed_programs"
_LONG = ("tests/stress/", "tests/test_images_built.py")
#: Layers of tests that may start processes are found by these.
_MODULES = ("multiprocessing", "pty", "subprocess")
_NAMES = (
    "create_subprocess_exec",
    "create_subprocess_shell",
    "execv",
    "execve",
    "fork",
    "posix_spawn",
    "sync_playwright",
)
#: Processes that a message names at most.
_SHOWN = 3
_FOLLOWED = ("tests", "harness", "stress", "conformance", "shared_pathways_service")


def pytest_configure(config: pytest.Config) -> None:
    for name, what in LAYERS.items():
        config.addinivalue_line("markers", f"{name}: {what} (put on automatically)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests, before `-m` selects."""
    reach = Reach(_FOLLOWED, modules=_MODULES, names=_NAMES)
    for item in items:
        if layer_of(item) is None:
            item.add_marker(_layer(item, reach, config.rootpath))


def layer_of(item: pytest.Item) -> str | None:
    """Returns the layer that a test is marked with."""
    return next((mark.name for mark in item.iter_markers() if mark.name in LAYERS), None)


def _layer(item: pytest.Item, reach: Reach, root: Path) -> str:
    if _CONTROL_PLANE in getattr(item, "fixturenames", ()):
        return "testbed"
    if not any(reach.reaches(code) for code in _code(item)):
        return "unit"
    path = item.path.relative_to(root).as_posix() if item.path.is_relative_to(root) else ""
    return "long" if path.startswith(_LONG) else "local"


def _code(item: pytest.Item) -> Iterator[object]:
    """Yields the functions of a test and of its fixtures, and the values of its parameters."""
    if isinstance(item, pytest.Function):
        yield item.function
        # (A test of hypothesis is another function, which names nothing.)
        if (of_hypothesis := getattr(item.function, "hypothesis", None)) is not None:
            yield of_hypothesis.inner_test
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            yield from (definition.func for definition in definitions)
        if hasattr(item, "callspec"):
            yield from item.callspec.params.values()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    with _starting_nothing(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    with _starting_nothing(item):
        return (yield)


@contextlib.contextmanager
def _starting_nothing(item: pytest.Item) -> Iterator[None]:
    """Fails a test of layer unit that starts a process in the block."""
    if layer_of(item) != "unit":
        yield
        return
    with noticing_process_starts() as started:
        yield
    if started:
        pytest.fail(
            f"a test of layer unit started a process: {'; '.join(started[:_SHOWN])}. Mark it with "
            "@pytest.mark.local (harness/layers/plugin.py says how layers are found).",
            pytrace=False,
        )
