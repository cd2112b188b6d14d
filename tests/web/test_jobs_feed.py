"""Submitted jobs on the page's server: read once for all pages, cancelled, submitted again."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.embedded import embedded, eventually
from harness.processes import DEADLINE_S, run_async
from harness.web_page import Jobs, Script, feed_of
from shared_pathways_service.agent.request import user_name
from shared_pathways_service.api.job_requests import JobStatus
from shared_pathways_service.api.service_choice import DEFAULT_NAMESPACE, ServiceChoice
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.homes.choice import make_job_home
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.submission import submit
from shared_pathways_service.web.jobs_feed import JobsFeed
from shared_pathways_service.web.page_actions import PageActions
from shared_pathways_service.web.service_feed import ServiceFeed
from shared_pathways_service.web.service_load import load_of
from tests.web.samples import job, jobs

_SPS = [sys.executable, "-P", "-m", "shared_pathways_service.cli"]


class Counted(Jobs):
    """Counts how often it is read."""

    reads = 0

    def jobs(self) -> Sequence[JobStatus]:
        self.reads += 1
        return super().jobs()


def test_many_pages_cost_one_reading() -> None:
    home = Counted(job("a", "running"), job("b", "queued"))

    async def run() -> None:
        feed = feed_of(home)
        answers = await asyncio.gather(*(feed.all_jobs() for _ in range(20)))
        assert [[one["name"] for one in answer] for answer in answers] == [["b", "a"]] * 20
        assert home.reads < 20
        # What the page itself changed is read at once.
        before = home.reads
        assert await feed.cancel("a") == "a is cancelled"
        assert {one["name"]: one["state"] for one in await feed.all_jobs()}["a"] == "cancelled"
        assert home.reads == before + 1

    run_async(run())


def test_a_job_that_is_not_there_is_refused() -> None:
    async def run() -> None:
        feed = feed_of(jobs())
        with pytest.raises(ServiceNotFound, match="no job nobody"):
            await feed.output("nobody")
        actions = PageActions(ServiceFeed(Script(), "embedded"), ["false"], jobs=feed)
        with pytest.raises(ServiceNotFound, match="no job nobody"):
            await actions.act("submit-again", {"name": "nobody"})

    run_async(run())


def test_a_real_job_is_submitted_again_as_it_was(tmp_path: Path) -> None:
    source = "import os, json; print(json.dumps([os.getcwd(), os.environ['SPS_JOB_NAME']]))"
    with embedded(1):
        first = submit(
            [sys.executable, "-c", source, "--word=a b"], workdir=tmp_path, name="first", retries=1
        )
        assert first.wait(DEADLINE_S).state == "succeeded"
        settings = Settings.load()
        choice = ServiceChoice.check((None, None, None), None, DEFAULT_NAMESPACE, None)

        async def again() -> str:
            feed = JobsFeed(lambda: make_job_home(choice, settings, user_name()))
            actions = PageActions(
                ServiceFeed(Script(), "embedded"),
                ["false"],
                submit_command=[*_SPS, "submit", "--json"],
                jobs=feed,
            )
            told = await actions.act("submit-again", {"name": "first"})
            names = [one["name"] for one in await feed.all_jobs()]
            await actions.close()
            assert told == f"submitted as {names[0]}"
            return str(names[0])

        found: list[str] = []

        async def run() -> None:
            found.append(await again())

        run_async(run())
        [name] = found
        home = make_job_home(choice, settings, user_name())
        second = home.wait(name, DEADLINE_S)
        fields = ("command", "workdir", "slices", "retries", "exit_code")
        assert [getattr(second, field) for field in fields] == [
            getattr(first.status(), field) for field in fields
        ]
        assert json.loads(home.output(name, 10)[0]) == [str(tmp_path), name]
        # (That it used no slices is told below, in one long line.)
        assert len(home.output(name, 1)[0]) > 400


def test_the_load_is_that_of_the_services_processes() -> None:
    with embedded(1):
        used: dict[str, Any] = load_of(Settings.load())
        assert 50 << 20 < used["memory"]["used_bytes"] < used["memory"]["total_bytes"]
        assert 0 < used["disk"]["free_bytes"] <= used["disk"]["total_bytes"]
        assert used["disk"]["directory"] == str(Settings.load().state_dir)
    eventually(lambda: load_of(Settings.load())["memory"] is None, "the end of the service")
