"""A session's cluster stays the same one, whatever the user's kubeconfig says on another day."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from kubernetes.client import Configuration

from harness.deadlines import deadline
from harness.processes import run_async
from shared_pathways_service.agent.clean_up import clean_up_sessions
from shared_pathways_service.agent.deletion import clean_up
from shared_pathways_service.agent.journal import Entry, Journal
from shared_pathways_service.agent.messages import Start
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.errors import CleanupError, InvalidRequestError
from shared_pathways_service.homes.choice import make_home
from shared_pathways_service.kube import access
from shared_pathways_service.kube.access import settled
from shared_pathways_service.kube.cluster import ClusterAccess, ClusterChoice
from shared_pathways_service.patience.factor import Timeout
from tests.homes.kubernetes.clusters import (
    EXEC,
    SERVICE,
    Clusters,
    entry_of,
    started,
    two_clusters,
)
from tests.kube.background import background
from tests.kube.certificates import Authority
from tests.kube.recording_server import recording_server, server_context


async def deleted(journal: Journal, entry: Entry) -> CleanupError | None:
    """Takes down what the entry, as it comes back from the disk, names."""
    journal.write(entry)
    read = journal.read(entry.session)
    assert read is not None
    return await clean_up(journal, [read], make_home)


def test_a_session_of_the_ambient_cluster_is_deleted_there(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_directories.mkdir(exist_ok=True)
    journal = Journal(own_directories / "journal")

    async def test() -> None:
        async with two_clusters() as clusters:
            config = clusters.kubeconfig(own_directories / "config", "A")
            monkeypatch.setenv("KUBECONFIG", str(config))
            start = started()
            options = start.home.options
            assert (options["context"], options["server"]) == ("A", clusters.urls["A"])

            clusters.kubeconfig(config, "B")
            entry = entry_of(start)
            assert await deleted(journal, entry) is None
            assert journal.read(entry.session) is None

            other = clusters.kubeconfig(own_directories / "other", "B")
            monkeypatch.setenv("KUBECONFIG", str(other))
            assert await deleted(journal, entry_of(start)) is None
            # Of the file that the session knew, only a copy is left.
            config.replace(own_directories / "copy")
            assert await deleted(journal, entry_of(start)) is None
            assert [one[0] for one in clusters.asked] == ["A"] * 3, clusters.asked

            # One of an earlier version goes where the user is now.
            old = {"context": "", "kubeconfig": (), "server": ""}
            assert await deleted(journal, entry_of(start, **old)) is None
            assert clusters.asked[-1].startswith("B: ")

    run_async(test())


def test_a_context_that_is_another_server_now_is_not_asked(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_directories.mkdir(exist_ok=True)
    journal = Journal(own_directories / "journal")

    async def test() -> None:
        async with two_clusters() as clusters:
            config = clusters.kubeconfig(own_directories / "config", "A")
            monkeypatch.setenv("KUBECONFIG", str(config))
            entry = entry_of(started(context="A"))
            clusters.kubeconfig(config, "A", A=clusters.urls["B"])
            error = await deleted(journal, entry)
            assert error is not None
            assert clusters.urls["A"] in error.message
            assert clusters.urls["B"] in error.message
            assert entry.name in error.left[0]
            assert journal.read(entry.session) is not None
            assert clusters.asked == []

    run_async(test())


def test_a_session_of_the_pods_own_cluster(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_directories.mkdir(exist_ok=True)
    journal = Journal(own_directories / "journal")
    monkeypatch.setenv("KUBECONFIG", str(own_directories / "none"))

    async def test() -> None:
        async with two_clusters() as clusters:
            here = ClusterAccess(
                server="https://10.0.0.1:443",
                tls=None,
                tokens=None,  # type: ignore[arg-type]
            )
            with monkeypatch.context() as pod:
                pod.setattr(access, "is_in_cluster", lambda: True)
                pod.setattr(access, "in_cluster_access", lambda: here)
                start = started()
            assert start.home.options["in_cluster"]
            config = clusters.kubeconfig(own_directories / "config", "B")
            monkeypatch.setenv("KUBECONFIG", str(config))
            error = await deleted(journal, entry_of(start))
            assert error is not None
            assert here.server in error.message
            assert clusters.asked == []

    run_async(test())


def test_a_place_that_is_not_named_is_the_one_of_today(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_directories.mkdir(exist_ok=True)
    clusters = Clusters()
    clusters.urls = {"A": "http://a", "B": "http://b"}
    config = clusters.kubeconfig(own_directories / "config", "A")
    monkeypatch.setenv("KUBECONFIG", str(config))
    entry = entry_of(started())
    assert Place(pathways_service=SERVICE).has(entry)
    assert Place(context="A").has(entry)
    clusters.kubeconfig(config, "B")
    assert not Place(pathways_service=SERVICE).has(entry)
    assert Place(context="A").has(entry)
    assert settled(ClusterChoice(context="nowhere")).server == ""


def handing_over(url: str) -> Start:
    """Returns the start of a session whose program has set up the official client."""
    return started(api_client=Configuration(host=url + "/"))


def test_what_a_program_handed_over_is_deleted_by_a_context_of_that_server(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_directories.mkdir(exist_ok=True)
    journal = Journal(own_directories / "journal")

    async def test() -> None:
        async with two_clusters() as clusters:
            config = own_directories / "config"
            monkeypatch.setenv("KUBECONFIG", str(config))
            entry = entry_of(handing_over(clusters.urls["B"]))
            assert entry.home.options["context"] == ""
            error = await deleted(journal, entry)
            assert error is not None
            assert f"no access to the cluster at {clusters.urls['B']}" in error.message
            assert journal.read(entry.session) is not None
            with pytest.raises(InvalidRequestError, match="has no context of this cluster"):
                Place.of_service(entry)
            assert not Place(context="A").has(entry)

            # Neither the current context nor its cluster's name counts.
            clusters.kubeconfig(config, "A")
            assert Place.of_service(entry).context == "B"
            assert Place(context="B").has(entry)
            assert not Place(context="A").has(entry)
            assert await deleted(journal, entry) is None
            assert [one[0] for one in clusters.asked] == ["B"], clusters.asked

    run_async(test())


@pytest.mark.local
def test_a_new_agent_cleans_up_with_what_the_program_hands_over(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_directories.mkdir(exist_ok=True)
    authority = Authority("clusters")
    bundle = own_directories / "ca.crt"
    bundle.write_text(authority.certificate)
    monkeypatch.setenv("KUBECONFIG", str(own_directories / "none"))
    with background() as servers:
        server = servers.enter(recording_server(authority.issue("api", address="127.0.0.1")))
        configuration = Configuration(host=f"https://127.0.0.1:{server.port}")
        configuration.ssl_ca_cert = str(bundle)
        configuration.api_key["authorization"] = "Bearer of the program"
        start = started(api_client=configuration)
        assert start.handed_over is not None
        journal = Journal(own_directories / "journal")
        journal.write(entry_of(start))
        log = own_directories / "agent.log"
        error = clean_up_sessions(
            own_directories / "journal", [start.session], log, handed_over=start.handed_over
        )
        assert error is None, log.read_text()
        assert journal.entries() == []
        assert {dict(seen.headers)["authorization"] for seen in server.seen} == {
            "Bearer of the program"
        }
        assert "of the program" not in log.read_text()


@pytest.mark.local
def test_a_session_that_was_let_in_waits_for_its_credentials_to_come_back(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own_directories.mkdir(exist_ok=True)
    journal = Journal(own_directories / "journal")
    plugin = own_directories / "plugin"
    credential = {"apiVersion": EXEC, "kind": "ExecCredential", "status": {"token": "t"}}
    past = {**credential["status"], "expirationTimestamp": "2020-01-01T00:00:00Z"}  # type: ignore[dict-item]

    def answer(words: str) -> None:
        plugin.write_text(f"#!/bin/sh\n{words}\n")
        plugin.chmod(0o700)

    async def test() -> None:
        certificate = Authority("clusters").issue("clusters", address="127.0.0.1")
        async with two_clusters(server_context(certificate)) as clusters:
            answer(f"echo '{json.dumps({**credential, 'status': past})}'")
            config = clusters.kubeconfig(own_directories / "config", "A")
            monkeypatch.setenv("KUBECONFIG", str(config))
            start = started()
            home = make_home(start.home)
            name = start.request.name
            assert not await home.delete_proxy(name, "uid-in-A", start.session)
            await home.close()

            answer("echo no such host >&2; exit 1")
            entry = entry_of(start)
            journal.write(entry)
            monkeypatch.setenv("SPS_PATIENCE", "0.05")
            limit = Timeout(3600.0)
            cleaning = asyncio.create_task(clean_up(journal, [entry], lambda _: home, limit=limit))
            async with asyncio.timeout(deadline(50.0)):
                while caplog.text.count("deleting") < 2:
                    await asyncio.sleep(0.01)
            # The next one is not given up, so that there is no other after it.
            monkeypatch.setenv("SPS_PATIENCE", "3")
            answer(f"echo '{json.dumps(credential)}'")
            assert await cleaning is None
            assert journal.read(entry.session) is None
            assert len(clusters.asked) == 2

    with caplog.at_level(logging.WARNING):
        run_async(test())
