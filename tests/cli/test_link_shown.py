"""The link of a connection of this machine, as `sps list` and `sps status` show it."""

from __future__ import annotations

import json
import re
import time

import pytest

from harness.programs import sps
from shared_pathways_service.agent.journal import Entry, Journal, journal_directory
from shared_pathways_service.cli.commands.sessions.list import ListedConnection
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.runtime.processes import Identity, identity_of
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.session.link_view import LinkView

NAME = "isc-proxy-ada-x7k2p"


def entry(link: LinkView | None) -> Entry:
    return Entry(
        session="5e55",
        name=NAME,
        home=HomeChoice(name="embedded", options={}),
        owner=identity_of(),
        agent=identity_of(),
        since="2026-01-01T00:00:00.000Z",
        state="serve",
        link=link,
    )


@pytest.fixture
def journal() -> Journal:
    journal = Journal(journal_directory(Settings.load()))
    lost = entry(
        LinkView(
            state="lost",
            lost_at=time.time() - 12,
            attempts=3,
            reason="reset by the peer",
            error="connection refused",
        )
    )
    journal.write(lost)
    return journal


def test_a_list_shows_a_lost_link(journal: Journal) -> None:
    [listed] = json.loads(sps("list", "--json").stdout)
    assert listed["state"] == "serve"
    link = listed["link"]
    assert (link["state"], link["attempts"], link["error"]) == ("lost", 3, "connection refused")
    assert link["lost_at"].endswith("Z")
    assert link["resumed_at"] is None
    assert re.search(r"serve, link lost \d+ s ago", sps("list").stdout)
    journal.write(entry(None))
    [listed] = json.loads(sps("list", "--json").stdout)
    assert listed["link"] is None


def test_a_status_that_fails_says_that_the_link_is_lost(journal: Journal) -> None:
    assert journal.entries()
    done = sps("status", check=False)
    assert done.returncode == 3
    assert re.search(
        f"{NAME}: link lost \\d+ s ago, reconnecting \\(attempt 4\\): connection refused",
        done.stderr,
    )


def test_the_link_of_a_lost_agent_is_not_shown() -> None:
    known = entry(LinkView(state="lost", lost_at=1.0))
    assert ListedConnection.of(known).link is not None
    gone = Entry(**{**vars(known), "agent": Identity(pid=1, start="never")})
    assert ListedConnection.of(gone).link is None
