"""A service on the testbed, and client programs that are its tenants."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.deadlines import deadline, wait_until
from harness.programs import Program, program
from shared_pathways_service.agent.journal import Entry, Journal
from shared_pathways_service.constants import DISTRIBUTED_ENGINE, LOCAL_ENGINE
from shared_pathways_service.manifests.names import APP, LABEL_APP
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.deployed_service import DeployedService, deploy_service

__all__ = [
    "KIND",
    "PRELUDE",
    "client",
    "deployed",
    "home_of",
    "journal",
    "nothing_left",
    "proxies",
    "tenant",
]

KIND = "tpuv6e:2x2"

#: `connecting(...)` asks for slices of the service in the cluster that KUBECONFIG names.
PRELUDE = f"""
import functools
heard = []
def hear(event):
    heard.append(event)
connecting = functools.partial(
    isc_pathways.connect, context="testbed", namespace=os.environ["TEST_NAMESPACE"],
    timeout={deadline(90.0)}, on_event=hear)
"""


def deployed(
    namespace: Namespace,
    slices: int = 2,
    *,
    spares: int = 0,
    ready: bool = True,
    engine: str = LOCAL_ENGINE,
) -> DeployedService:
    """Returns a service with slices of one type, on its own nodes."""
    # (Workers whose executors compute on CPUs are on other nodes than TPUs, and than the head's.)
    if engine == DISTRIBUTED_ENGINE:
        namespace.add_nodes({}, cpu_nodes=slices + spares)
    else:
        namespace.add_nodes({KIND: slices + spares}, cpu_nodes=0)
    return deploy_service(
        namespace, {KIND: slices + spares}, ready=ready, spares=spares, engine=engine
    )


def tenant(namespace: Namespace, role: str = "tenant") -> Mapping[str, str]:
    """Returns the variables of a laptop whose user only has a role in the namespace."""
    return {
        "KUBECONFIG": str(namespace.kubeconfig_of(role)),
        "TEST_NAMESPACE": namespace.name,
        "HOME": home_of(),
    }


def home_of() -> str:
    """Returns the empty home directory of the laptop."""
    home = Path(os.environ["SPS_STATE_DIR"]).parent / "home"
    home.mkdir(exist_ok=True)
    return str(home)


@contextlib.contextmanager
def client(namespace: Namespace, source: str, *, role: str = "tenant") -> Iterator[Program]:
    """Runs a client program, with `connecting`, for the length of the block."""
    with program(PRELUDE + source, env=tenant(namespace, role)) as running:
        yield running


def proxies(namespace: Namespace) -> list[str]:
    """Returns the Jobs, pods, Secrets and ConfigMaps of proxies."""
    selector = f"{LABEL_APP}={APP}"
    return [
        f"{resource} {thing['metadata']['name']}"
        for resource in ("batch/v1/jobs", "pods", "secrets", "configmaps")
        for thing in namespace.items(resource, labelSelector=selector)
    ]


def journal() -> list[Entry]:
    """Returns what this user's journal has."""
    directory = Settings.load().state_dir / "journal"
    return Journal(directory).entries() if directory.exists() else []


def nothing_left(namespace: Namespace) -> None:
    """Waits until no proxy is left: no object, no process, no entry of the journal."""

    def left() -> list[str]:
        running = [f"process of {pod}" for pod in namespace.processes() if "isc-proxy" in pod]
        return [*proxies(namespace), *running, *(f"journal: {entry}" for entry in journal())]

    try:
        wait_until("the end of all that is the proxies'", lambda: not left())
    except AssertionError as error:
        error.add_note("\n".join(left()))
        raise
