"""``python -m tests.agent.fake_agent DESCRIPTOR``: the agent, with the home that is a script."""

from __future__ import annotations

import sys

from shared_pathways_service.agent.__main__ import main
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.base import Home
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.testing.fake_home import FakeHome

COMMAND = (sys.executable, "-P", "-m", "tests.agent.fake_agent")


def make_home(choice: HomeChoice) -> Home:
    if choice.name != "fake":
        raise InvalidRequestError("home", choice.name, "'fake'")
    return FakeHome(**choice.options)


async def probe(address: str, plaintext: bool) -> None:
    assert address
    assert plaintext


if __name__ == "__main__":
    main(sys.argv[1:], make_home=make_home, probe=probe)
