"""The testbed as fixtures: one control plane a run of pytest, a namespace a test.

With ``--kube-context NAME``, or ``--cluster``, ``--project`` and ``--region``, the tests marked
``safe_on_shared`` run against a real cluster instead, and those that need a testbed do not run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import filelock
import pytest

from harness.layers.thorough import thorough
from harness.testbed.programs import CACHE_DIR, real_cluster, sayer
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.manifests.service_inputs import DEFAULT_SERVER_IMAGE
from shared_pathways_service.testing.testbed import (
    Namespace,
    Testbed,
    new_namespace,
)
from shared_pathways_service.testing.testbed.build import Programs
from shared_pathways_service.testing.testbed.deployed_service import OUR_SERVER_IMAGE
from shared_pathways_service.testing.testbed.description import Description
from shared_pathways_service.testing.testbed.launching import launch

_NAMESPACE = pytest.StashKey[Namespace]()
#: Suffixes of the directories of the run's testbeds.
_SHARED, _DISTURBED = "", "-disturbed"
#: Kinds of a service on the testbed: images of this project, and the stand-ins for Google's.
IMAGES = {"ours": OUR_SERVER_IMAGE, "googles": DEFAULT_SERVER_IMAGE}
#: The same, as values of a test's parameter.
ANY_IMAGES = ["ours", *thorough("googles")]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("testbed")
    group.addoption("--kube-context", help="run tests marked safe_on_shared on a real cluster")
    group.addoption("--cluster", help="the same on a GKE cluster; with --project and --region")
    group.addoption("--project", help="its Google Cloud project")
    group.addoption("--region", help="its region or zone")
    group.addoption("--kube-namespace", default="default", help="where its service is")
    group.addoption("--pathways-service", default="", help="its address; by default it is found")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "safe_on_shared: disturbs nobody on a real cluster that others use, too"
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _is_worker():
        return
    # They would end with this process, but nothing should be left when pytest prints its summary.
    with contextlib.ExitStack() as undo:
        for name in (_SHARED, _DISTURBED):
            directory = _directory(os.getpid(), name)
            undo.callback(directory.with_suffix(".lock").unlink, missing_ok=True)
            undo.callback(_remove, directory)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    made = item.stash.get(_NAMESPACE, None)
    if report.failed and report.when != "teardown" and made is not None:
        try:
            shown = made.diagnostics()
        except Exception as error:  # noqa: BLE001 - the test's own failure counts
            shown = f"it could not be read: {error!r}"
        # (Before what was captured, of which some keep the last lines only.)
        report.sections.insert(0, (f"namespace {made.name}", shown))
    return report


@pytest.fixture(scope="session")
def testbed(testbed_programs: Programs, request: pytest.FixtureRequest) -> Testbed:
    """The run's testbed: whoever needs it first starts it, and it ends with the run."""
    del testbed_programs  # they are there
    with _lock(_SHARED):
        return _started(_SHARED, request.config)


@pytest.fixture(scope="module")
def own_testbed(testbed: Testbed, request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """A new testbed of a module's own, for what needs one that no test has used."""
    del testbed  # it says whether there can be one
    with Testbed.start(cache_dir=CACHE_DIR, report=sayer(request.config)) as made:
        yield made


@pytest.fixture
def disturbed_testbed(
    testbed_programs: Programs, request: pytest.FixtureRequest
) -> Iterator[Testbed]:
    """The run's second testbed, for what would disturb other tests, as an API server's death.

    One test at a time has it, since the start of one for each costs more than most of the tests.
    """
    del testbed_programs  # they are there
    with _lock(_DISTURBED):
        directory = _directory(_owner(), _DISTURBED)
        if Description.read(directory) is not None and not _answers(directory):
            # A test has failed, or its process died, before it started the API server again.
            _remove(directory)
        yield _started(_DISTURBED, request.config)


@pytest.fixture
def namespace(testbed: Testbed, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own, with one node that has no TPUs."""
    with new_namespace(testbed) as made:
        request.node.stash[_NAMESPACE] = made
        yield made


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedCluster:
    """A cluster with a service, as an ordinary tenant sees it.

    Attributes:
      named: The arguments of connect() that name the cluster: ``context``, or ``cluster``,
        ``project`` and ``region``.
      namespace: Of the service and its proxies.
      pathways_service: Its address; empty: it is to be found.
    """

    named: Mapping[str, str]
    namespace: str
    pathways_service: str

    @property
    def options(self) -> list[str]:
        """The options of an `sps` command for this service."""
        named = [f"--{name}={value}" for name, value in self.named.items()]
        service = [f"--pathways_service={self.pathways_service}"] if self.pathways_service else []
        return [*named, f"--namespace={self.namespace}", *service]


@pytest.fixture
def shared_cluster(request: pytest.FixtureRequest) -> SharedCluster:
    """The cluster that this run names, for tests marked ``safe_on_shared``."""
    named = real_cluster(request.config)
    if not named:
        pytest.skip("no cluster is named; tests/testbed/test_kube_context.py names the testbed")
    return SharedCluster(
        named=named,
        namespace=request.config.getoption("--kube-namespace"),
        pathways_service=request.config.getoption("--pathways-service"),
    )


def _is_worker() -> bool:
    return bool(os.environ.get("PYTEST_XDIST_WORKER"))


def _owner() -> int:
    """Returns the process that lives as long as the run."""
    return os.getppid() if _is_worker() else os.getpid()


def _directory(owner: int, name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"sps-testbed-{os.getuid()}-{owner}{name}"


def _lock(name: str) -> filelock.FileLock:
    return filelock.FileLock(_directory(_owner(), name).with_suffix(".lock"))


def _started(name: str, config: pytest.Config) -> Testbed:
    """Returns one of the run's testbeds, and starts it if it does not run; needs its lock."""
    directory = _directory(_owner(), name)
    description = Description.read(directory)
    if description is None or not description.process.is_alive():
        shutil.rmtree(directory, ignore_errors=True)
        _start(directory, _owner(), config)
    return Testbed.attach(directory)


def _remove(directory: Path) -> None:
    """Stops the testbed of a directory if there is one, and removes all of it."""
    try:
        if (description := Description.read(directory)) is not None:
            Testbed(directory, description).stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _answers(directory: Path) -> bool:
    """Whether the API server of a testbed does."""
    try:
        Testbed.attach(directory).api.items("/api/v1/nodes")
    except (SharedPathwaysError, OSError, http.client.HTTPException):
        return False
    return True


def _start(directory: Path, owner: int, config: pytest.Config) -> None:
    directory.mkdir(mode=0o700)
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory)
        launch(directory, cache_dir=CACHE_DIR, parent_pid=owner, report=sayer(config))
        undo.pop_all()
