"""`sps testbed up`: runs a Kubernetes control plane with TPU nodes on this machine."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.cli.display.output import print_aside
from shared_pathways_service.cli.errors import INTERRUPTED, TERMINATED
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.testing.testbed.deployed_service import deploy_service
from shared_pathways_service.testing.testbed.errors import TestbedError
from shared_pathways_service.testing.testbed.handle import Testbed
from shared_pathways_service.testing.testbed.kubeconfig import CONTEXT
from shared_pathways_service.testing.testbed.namespace import Namespace

__all__ = ["bring_up"]

_EXIT_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
_NAMESPACE = "default"


def bring_up(
    action: Annotated[str, typer.Argument(metavar="up", help="The action: up.")],
    *,
    pools: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE=COUNT",
            help="Add TPU node pools, e.g. tpuv6e:2x2=3; repeatable. "
            "[default: no TPUs, and so no service]",
        ),
    ] = None,
    cpu_nodes: Annotated[
        int, typer.Option(min=0, help="Add nodes without TPUs, for resource manager and proxies.")
    ] = 2,
    service: Annotated[
        bool, typer.Option(help="Deploy a service of this project's servers on all pools.")
    ] = True,
) -> None:
    """Run a Kubernetes cluster of local processes on this machine, until Ctrl-C.

    The first run builds the control plane from source, which needs Go and some minutes.
    """
    if action != "up":
        raise InvalidRequestError("testbed", action, "up")
    counts = parse_instance_texts(pools, field="--pools") if pools else {}
    for number in _EXIT_CODES:
        signal.signal(number, _exit)
    with Testbed.start(report=print_aside) as running:
        running.add_pools(counts, cpu_nodes=cpu_nodes)
        namespace = Namespace(running, _NAMESPACE)
        address = ""
        if service and counts:
            print_aside("deploying the service ...")
            address = deploy_service(namespace, counts).address
        _explain(namespace, address)
        running.wait_for_end()
        raise TestbedError("the testbed ended by itself", hint=f"see {running.directory}")


def _exit(number: int, _frame: object) -> None:
    # A second signal ends the wait; the processes end nevertheless.
    print_aside("stopping everything ...")
    raise typer.Exit(_EXIT_CODES[signal.Signals(number)])


def _explain(namespace: Namespace, address: str) -> None:
    admin = namespace.testbed.kubeconfig_of(namespace.testbed.admin)
    lines = [
        f"Kubernetes is up at {namespace.testbed.server}.",
        f"Its logs are in {namespace.testbed.directory}.",
        "",
        f"  export KUBECONFIG={admin}",
        f"  export KUBECONFIG={namespace.kubeconfig_of('tenant')}   # for an ordinary tenant",
        "  kubectl get pods --output wide",
    ]
    if address:
        lines += [
            "",
            f'  isc_pathways.connect(context="{CONTEXT}", pathways_service="{address}")',
        ]
    sys.stdout.write("\n".join([*lines, "", "Ctrl-C stops everything.", ""]))
    sys.stdout.flush()
