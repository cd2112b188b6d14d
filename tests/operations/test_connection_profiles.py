"""`sps profile`: what it refuses, and what it says; tests/e2e/test_profiles.py runs it."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service.agent.journal import Entry, Journal, journal_directory
from shared_pathways_service.cli.commands.sessions.profile import profile
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.errors import (
    CapacityError,
    InvalidRequestError,
    ServiceNotFound,
    ServiceNotReady,
    SharedPathwaysError,
    VersionSkew,
)
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.jax_client.plugin.device_profile import ProfileFailed
from shared_pathways_service.operations import connection_profiles
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings

ENTRY = Entry(
    session="s",
    name="mine",
    home=HomeChoice(name="embedded"),
    owner=identity_of(),
    agent=identity_of(),
    since="2026-11-30T00:00:00Z",
    state="queued",
)


def write(**changes: Any) -> Journal:
    journal = Journal(journal_directory(Settings.load()))
    journal.write(dataclasses.replace(ENTRY, **changes))
    return journal


def run(name: str = "mine", output: Path = Path("out")) -> None:
    # (Without what makes its options one `Place`.)
    inspect.unwrap(profile)(name, seconds=1.0, output=output, as_json=True, place=Place())


def test_a_connection_that_is_not_there(own_directories: Path) -> None:
    write()
    with pytest.raises(ServiceNotFound, match="no connection other on this machine"):
        run("other")


def test_a_connection_without_a_proxy(own_directories: Path) -> None:
    write()
    with pytest.raises(ServiceNotReady, match="no proxy that serves yet: it is queued"):
        run()


def test_a_connection_without_an_agent(own_directories: Path) -> None:
    gone = dataclasses.replace(identity_of(), pid=2**22 - 1)
    write(agent=gone, address="unix:/p")
    with pytest.raises(ServiceNotReady, match="orphaned"):
        run()


def test_the_proxys_address_and_token(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(own_directories)
    write(address="unix:/p").write_token("s", "its-token")
    taken: list[Any] = []

    def take(*arguments: Any, **keywords: Any) -> connection_profiles.TakenProfile:
        taken.append((*arguments, keywords))
        return connection_profiles.TakenProfile(
            directory=Path("d"), files=("f",), notes=("a note",)
        )

    monkeypatch.setattr(connection_profiles, "take_profile", take)
    run(output=own_directories)
    settings = {"seconds": 1.0, "output": own_directories}
    assert taken == [("mine", "unix:/p", "its-token", settings)]
    assert json.loads(capsys.readouterr().out) == {
        "name": "mine",
        "directory": str(own_directories / "d"),
        "files": ["f"],
        "notes": ["a note"],
    }


def test_an_output_that_is_no_directory(own_directories: Path) -> None:
    file = own_directories / "file"
    file.touch()
    with pytest.raises(InvalidRequestError) as raised:
        connection_profiles.take_profile("mine", "unix:/p", None, seconds=1.0, output=file)
    assert (raised.value.field, raised.value.value) == ("--output", str(file))


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (ProfileFailed("one profile at a time", is_refused=True), CapacityError),
        (ProfileFailed("the proxy is of an older version", is_unknown=True), VersionSkew),
        (ProfileFailed("UNAVAILABLE: it has ended"), ServiceNotReady),
    ],
)
def test_failures(
    own_directories: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: ProfileFailed,
    kind: type[SharedPathwaysError],
) -> None:
    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(connection_profiles, "DeviceProfile", fail)
    with pytest.raises(SharedPathwaysError) as raised:
        connection_profiles.take_profile(
            "mine", "unix:/p", None, seconds=1.0, output=own_directories / "o"
        )
    assert type(raised.value) is kind
    assert str(failure) in raised.value.message
    # Nothing was written.
    assert list((own_directories / "o").iterdir()) == []
