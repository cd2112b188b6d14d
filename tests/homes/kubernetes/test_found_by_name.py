"""Commands find a connection of this user by its name, in whichever cluster it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.programs import sps_failing
from shared_pathways_service.agent.journal import Journal, journal_directory
from shared_pathways_service.runtime.settings import Settings
from tests.homes.kubernetes.clusters import SERVICE, Clusters, entry_of, started, two_clusters
from tests.kube.background import background

pytestmark = pytest.mark.local


@pytest.fixture
def clusters(own_directories: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clusters]:
    """Clusters A, which is the current one, and B, with the connection ``train``."""
    own_directories.mkdir(exist_ok=True)
    with background() as servers:
        made = servers.enter(two_clusters())
        config = made.kubeconfig(own_directories / "config", "A")
        monkeypatch.setenv("KUBECONFIG", str(config))
        entry = entry_of(started(context="B", proxy_job_name="train"))
        entry = dataclasses.replace(entry, service=SERVICE, namespace="default")
        Journal(journal_directory(Settings.load())).write(entry)
        yield made


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "train"),
        ("events", "--tenant=train"),
        ("status", "train"),
        ("logs", "train", "--component=rm"),
    ],
)
def test_its_own_cluster_is_asked(clusters: Clusters, words: tuple[str, ...]) -> None:
    code, err = sps_failing(*words)
    # (That cluster has no service.)
    assert code != 0
    assert "embedded" not in err
    assert {one[0] for one in clusters.asked} == {"B"}, (clusters.asked, err)


def test_other_names_and_other_places_are_not_looked_for_there(clusters: Clusters) -> None:
    for words in (
        ("explain", "others"),
        ("events", "--tenant=others"),
        ("events",),
        ("explain", "train", "--context=A"),
    ):
        assert sps_failing(*words)[0] != 0
    assert {one[0] for one in clusters.asked} == {"A"}, clusters.asked
