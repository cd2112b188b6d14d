"""Commands in messages: pasted into any shell, they act on the cluster of the message."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import Configuration

from harness.programs import sps
from shared_pathways_service.agent.clean_up import left_over
from shared_pathways_service.agent.deletion import clean_up
from shared_pathways_service.agent.journal import Journal
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.errors import AccessDenied, InvalidRequestError, ServiceNotFound
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterChoice
from shared_pathways_service.kube.command_place import CommandPlace
from shared_pathways_service.operations.cluster_access import Cluster
from tests.homes.kubernetes.clusters import SERVICE, Clusters, entry_of, started, two_clusters

GKE = {"cluster": "big", "project": "lab", "region": "us-east5"}


@pytest.fixture
def config(own_directories: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig with contexts A and B, of which A is the current one."""
    own_directories.mkdir(exist_ok=True)
    clusters = Clusters()
    clusters.urls = {"A": "http://a", "B": "http://b"}
    path = clusters.kubeconfig(own_directories / "my config", "A")
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def test_a_shell_reads_a_command_as_it_was_meant() -> None:
    place = CommandPlace(context="kind dev; rm -r x", kubeconfig="/home/a b/it's:/etc/kube")
    told = "; ".join(
        f'{tool}() {{ printf "%s\\n" "$KUBECONFIG" "$@"; }}' for tool in ("sps", "kubectl")
    )
    for line, words in (
        (
            place.sps("undeploy", "pw", namespace="team-a"),
            ["undeploy", "pw", "--context=kind dev; rm -r x", "--namespace=team-a"],
        ),
        (place.kubectl("uncordon", "n-1"), ["uncordon", "n-1", "--context=kind dev; rm -r x"]),
    ):
        done = subprocess.run(
            ["sh", "-c", f"{told}; {line}"], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == ["/home/a b/it's:/etc/kube", *words]


def test_an_ambient_cluster_is_named_in_commands(config: Path) -> None:
    for choice, context in ((ClusterChoice(), "A"), (ClusterChoice(context="B"), "B")):
        access = asyncio.run(resolve(choice))
        line = access.commands.sps("undeploy", "pw", namespace="team-a")
        assert line == (
            f"KUBECONFIG='{config}' sps undeploy pw --context={context} --namespace=team-a"
        )
    line = Place(pathways_service=SERVICE).command("cancel", "fit")
    assert line == f"KUBECONFIG='{config}' sps cancel fit --context=A --pathways-service={SERVICE}"
    assert Place(**GKE, namespace="team-a").command("cancel", "fit") == (
        "sps cancel fit --cluster=big --project=lab --region=us-east5 --namespace=team-a"
    )
    assert Place().command("cancel", "fit") == "sps cancel fit"


def test_the_usual_kubeconfig_is_not_named(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(own_directories))
    (own_directories / ".kube").mkdir(parents=True)
    clusters = Clusters()
    clusters.urls = {"A": "http://a"}
    clusters.kubeconfig(own_directories / ".kube" / "config", "A")
    commands = asyncio.run(resolve(ClusterChoice())).commands
    assert commands.sps("list", namespace="default") == "sps list --context=A"


def command_for(**request: Any) -> str:
    start = started(**request)
    home = dataclasses.asdict(start.home)
    # (As it comes back from the journal.)
    return HomeChoice(**home).command("delete", "train")


def test_what_a_session_left_is_deleted_where_it_was(config: Path) -> None:
    before = f"KUBECONFIG='{config}' sps delete train"
    assert command_for() == f"{before} --context=A"
    assert (
        command_for(context="B", namespace="team-a") == f"{before} --context=B --namespace=team-a"
    )
    assert command_for(**GKE) == "sps delete train --cluster=big --project=lab --region=us-east5"
    assert HomeChoice(name="embedded").command("delete", "train") == "sps delete train"
    # (No option names it; the journal of this machine does.)
    handed_over = started(api_client=Configuration(host="http://c"), namespace="team-a").home
    assert handed_over.command("delete", "train") == "sps delete train"

    home = started(context="B").home
    assert left_over(["proxy train"], "train", home).command == f"{before} --context=B"
    assert left_over(["what the journal names"]).command == "sps reap"


def test_a_proxy_that_could_not_be_deleted_is_named_with_its_place(
    config: Path, own_directories: Path
) -> None:
    class Refusing:
        async def delete_proxy(self, *_: str) -> bool:
            raise AccessDenied("no", verb="delete", resource="jobs", namespace="", rule="")

        async def close(self) -> None:
            pass

    journal = Journal(own_directories / "journal")
    entry = entry_of(started(context="B", namespace="team-a", proxy_job_name="train"))
    journal.write(entry)
    read = journal.read(entry.session)
    assert read is not None
    error = asyncio.run(clean_up(journal, [read], lambda _: Refusing()))  # type: ignore[arg-type, return-value]
    assert error is not None
    assert error.command == (
        f"KUBECONFIG='{config}' sps delete train --context=B --namespace=team-a"
    )


def test_hints_of_operations_name_the_cluster(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_directories.mkdir(exist_ok=True)
    path = own_directories / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))

    async def test() -> None:
        async with two_clusters() as clusters:
            clusters.kubeconfig(path, "A")
            async with KubeApi(await resolve(ClusterChoice(context="B"))) as api:
                cluster = Cluster(api, "team-a")
                with pytest.raises(ServiceNotFound) as caught:
                    await cluster.proxy("train")
                assert caught.value.hint == (
                    f"`KUBECONFIG={path} sps list --all --context=B --namespace=team-a` shows the "
                    "connections"
                )

    asyncio.run(test())


def test_commands_of_clusters_act_in_a_namespace_of_the_current_context(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_directories.mkdir(exist_ok=True)

    async def work() -> None:
        async with two_clusters() as clusters:
            path = clusters.kubeconfig(own_directories / "config", "B")
            monkeypatch.setenv("KUBECONFIG", str(path))
            for words in (
                ("deploy", "pw", "--slices=tpuv6e:2x2=1", "--timeout=1"),
                ("upgrade", "pw", "--spares=0"),
                ("undeploy", "pw"),
                ("hotswap", "--disrupt=pool"),
            ):
                clusters.asked.clear()
                done = await asyncio.to_thread(sps, *words, "--namespace=team", check=False)
                assert done.returncode != 0
                assert any("/namespaces/team/" in asked for asked in clusters.asked), done
                assert all(asked.startswith("B: ") for asked in clusters.asked)

    asyncio.run(work())


def test_a_place_in_a_cluster_is_checked() -> None:
    assert Place(namespace="team").in_cluster.namespace == "team"
    with pytest.raises(InvalidRequestError, match="namespace='Team' is not valid"):
        Place(namespace="Team").in_cluster  # noqa: B018 - it checks
    with pytest.raises(InvalidRequestError, match="region='r' is not valid"):
        Place(namespace="team", region="r").in_cluster  # noqa: B018
