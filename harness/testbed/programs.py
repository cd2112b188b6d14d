"""The control plane's programs as a fixture: built where a run needs them, or its tests skipped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import pytest

from harness.layers.plugin import layer_of
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.testing.testbed import TestbedUnavailable
from shared_pathways_service.testing.testbed.build import Programs, find_built, find_or_build
from shared_pathways_service.testing.testbed.launching import check_machine

__all__ = ["CACHE_DIR", "real_cluster", "sayer", "testbed_programs"]

#: Before tests get a cache directory of their own.
CACHE_DIR = Settings.load().cache_dir
_MISSING = pytest.StashKey[str]()


def real_cluster(config: pytest.Config) -> dict[str, str]:
    """Returns what names the real cluster of this run; nothing: the run is on the testbed."""
    if context := config.getoption("--kube-context"):
        return {"context": context}
    given = {name: config.getoption(f"--{name}") for name in ("cluster", "project", "region")}
    if any(given.values()) and not all(given.values()):
        raise pytest.UsageError("--cluster, --project and --region go together")
    return {name: value for name, value in given.items() if value}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the control plane where it is needed: in a test's own time it would take too long."""
    config = session.config
    needed = [item for item in session.items if layer_of(item) == "testbed"]
    if not needed or config.option.collectonly:
        return
    if real_cluster(config):
        config.stash[_MISSING] = "needs a testbed, and this run is on a real cluster"
        return
    # A run of `tests/manifests`, say, has some such tests, and is not for them.
    is_for_them = len(needed) == len(session.items)
    selects_them = "testbed" in config.option.markexpr.replace("not testbed", "")
    try:
        check_machine()
        if is_for_them or _is_ci() or selects_them:
            find_or_build(CACHE_DIR, sayer(config))
        elif find_built(CACHE_DIR) is None:
            config.stash[_MISSING] = (
                "no testbed is built: `pytest -m testbed` builds it, once (docs/testbed.md)"
            )
    except TestbedUnavailable as error:
        # (In CI the fixture raises it.)
        if not _is_ci():
            sayer(config)(f"NO TESTBED, its tests are skipped: {error}")
            config.stash[_MISSING] = f"no testbed: {error}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests that need what is missing: here, so that pytest has one line for all of them."""
    reason = item.config.stash.get(_MISSING, None)
    if reason is not None and layer_of(item) == "testbed":
        pytest.skip(reason)


@pytest.fixture(scope="session")
def testbed_programs(request: pytest.FixtureRequest) -> Programs:
    """The programs of the control plane; a test that needs them is of layer `testbed`."""
    check_machine()
    return find_or_build(CACHE_DIR, sayer(request.config))


def _is_ci() -> bool:
    return os.environ.get("CI") == "true"


def sayer(config: pytest.Config) -> Callable[[str], None]:
    """Returns what writes a line past pytest's capture: a build takes minutes, and so on."""
    capture = config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            os.write(2, f"testbed: {text}\n".encode())

    return say
