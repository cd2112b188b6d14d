"""The homes of submitted jobs are chosen by their names only."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.choice import make_job_home
from shared_pathways_service.runtime.settings import Settings

EMBEDDED = ServiceChoice.check((None, None, None), None, "default", None)


@pytest.mark.usefixtures("own_directories")
def test_a_home_without_jobs_is_refused_by_name() -> None:
    settings = Settings.load()
    for name in ("pod", "Embedded", ""):
        other: Any = name
        with pytest.raises(InvalidRequestError) as caught:
            make_job_home(dataclasses.replace(EMBEDDED, home=other), settings, "ada")
        assert (caught.value.field, caught.value.value) == ("home", name)
        assert caught.value.expected == "'embedded' or 'kubernetes'"


@pytest.mark.usefixtures("own_directories")
def test_each_home_with_jobs_is_made_by_its_name() -> None:
    cluster = ServiceChoice.check((None, None, None), "dev", "default", None)
    for service in (EMBEDDED, cluster):
        assert make_job_home(service, Settings.load(), "ada").name == service.home
