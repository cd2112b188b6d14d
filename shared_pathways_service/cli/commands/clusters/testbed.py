"""`sps testbed up`: a Kubernetes control plane with TPU nodes on this machine, for a person."""

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
    action: Annotated[str, typer.Argument(metavar="up", help="What to do: up.")],
    *,
    pools: Annotated[
        list[str] | None,
        typer.Option(
            help="TPU node pools, TYPE=COUNT, e.g. tpuv6e:2x2=3; repeatable. "
            "Without it: no TPUs, and so no service."
        ),
    ] = None,
    cpu_nodes: Annotated[
        int, typer.Option(min=0, help="Nodes without TPUs, for resource manager and proxies.")
    ] = 2,
    service: Annotated[
        bool, typer.Option(help="Deploy a service on all pools, of this project's own servers.")
    ] = True,
) -> None:
    """Bring up Kubernetes on this machine, pods as local processes; Ctrl-C takes all down.

    The control plane is built from source the first time, which needs Go and some minutes.
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
    # A second one does not wait for the end of everything, which comes all the same.
    print_aside("taking everything down ...")
    raise typer.Exit(_EXIT_CODES[signal.Signals(number)])


def _explain(namespace: Namespace, address: str) -> None:
    admin = namespace.testbed.kubeconfig_of(namespace.testbed.admin)
    lines = [
        f"Kubernetes is up at {namespace.testbed.server}.",
        f"Its logs are in {namespace.testbed.directory}.",
        "",
        f"  export KUBECONFIG={admin}",
        f"  export KUBECONFIG={namespace.kubeconfig_of('tenant')}   # an ordinary tenant's",
        "  kubectl get pods --output wide",
    ]
    if address:
        lines += [
            "",
            f'  isc_pathways.connect(context="{CONTEXT}", pathways_service="{address}")',
        ]
    sys.stdout.write("\n".join([*lines, "", "Ctrl-C takes everything down.", ""]))
    sys.stdout.flush()
