"""The agent asks the program for its login; the program may be slow, fail, or be gone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from harness.deadlines import deadline, wait_until
from shared_pathways_service.agent.login_answers import LoginAnswers
from shared_pathways_service.agent.login_questions import LoginQuestions, with_access
from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.homes.base import Home
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.errors import ApiUnreachable
from shared_pathways_service.kube.handed_over import HandedOver, Login
from shared_pathways_service.patience.factor import Timeout

SERVER = "https://api.test"
LOGIN = Login(header="Bearer one")
ANSWER = {"type": "login", "login": dataclasses.asdict(LOGIN)}


class Wire:
    """Messages to a program that does not answer by itself."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.questions = LoginQuestions(self.sent.append, SERVER)

    async def asked(self, number: int = 1) -> None:
        async with asyncio.timeout(deadline(30.0)):
            while len(self.sent) < number:
                await asyncio.sleep(0)


async def got(wire: Wire, *messages: Mapping[str, Any]) -> list[Any]:
    """Returns what several questions at once get from these answers."""
    before = len(wire.sent)
    asking = [asyncio.create_task(wire.questions.ask()) for _ in range(3)]
    await wire.asked(before + 1)
    for message in messages:
        wire.questions.answer(message)
    return await asyncio.gather(*asking, return_exceptions=True)


def test_several_who_ask_at_once_share_an_answer() -> None:
    async def test() -> None:
        wire = Wire()
        assert await got(wire, ANSWER) == [LOGIN] * 3
        assert wire.sent == [{"type": "login"}]
        # An answer that is late, or was not asked for, does no harm.
        wire.questions.answer(ANSWER)
        assert (
            await got(wire, {**ANSWER, "login": {"header": "Bearer two"}})
            == [Login(header="Bearer two")] * 3
        )

    asyncio.run(test())


def test_one_who_is_cancelled_does_not_take_the_answer_from_others() -> None:
    async def test() -> None:
        wire = Wire()
        first = asyncio.create_task(wire.questions.ask())
        second = asyncio.create_task(wire.questions.ask())
        await wire.asked()
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        wire.questions.answer(ANSWER)
        assert await second == LOGIN

    asyncio.run(test())


def test_a_hook_that_failed() -> None:
    async def test() -> None:
        failed = AccessDenied("no identity provider", verb="connect", resource="cluster")
        wire = Wire()
        for error in await got(wire, {"type": "login", "error": failed.to_json()}):
            assert isinstance(error, AccessDenied)
            assert str(error) == "no identity provider"
        assert await got(wire, ANSWER) == [LOGIN] * 3

    asyncio.run(test())


def test_a_program_that_has_ended() -> None:
    async def test() -> None:
        wire = Wire()
        asking = asyncio.create_task(wire.questions.ask())
        await wire.asked()
        wire.questions.end()
        for question in (asking, wire.questions.ask()):
            with pytest.raises(AccessDenied, match="no longer answers"):
                await question
        assert len(wire.sent) == 1

    asyncio.run(test())


def test_a_program_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_PATIENCE", "0.01")

    async def test() -> None:
        wire = Wire()
        with pytest.raises(ApiUnreachable, match="has not answered"):
            await wire.questions.ask()
        # The next one asks again.
        assert await got(wire, ANSWER) == [LOGIN] * 3
        assert len(wire.sent) == 2

    asyncio.run(test())


class Answered:
    """Answers that were sent, of a hook that a test can hold up."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.go_on = threading.Event()
        self.error: Exception | None = None

    def read(self) -> Login:
        assert self.go_on.wait(deadline(30.0))
        if self.error is not None:
            raise self.error
        return LOGIN


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AccessDenied("no identity provider"), "no identity provider"),
        (LookupError("x"), "cannot read api_client: LookupError: x"),
    ],
)
def test_the_programs_answers(error: Exception, said: str) -> None:
    told = Answered()
    answers = LoginAnswers(told.read, told.sent.append)
    answers.ask()
    assert told.sent == []
    told.go_on.set()
    wait_until("the answer", lambda: told.sent == [ANSWER])
    told.error = error
    answers.ask()
    wait_until("the next", lambda: len(told.sent) == 2)
    assert told.sent[1]["error"]["message"] == said
    answers.close()


def test_a_hook_that_hangs_does_not_hold_up_the_end() -> None:
    told = Answered()
    answers = LoginAnswers(told.read, told.sent.append, Timeout(0.1))
    answers.ask()
    answers.close()
    assert told.sent == []
    told.go_on.set()
    wait_until(
        "the thread's end", lambda: "sps-login" not in {t.name for t in threading.enumerate()}
    )


def test_only_sessions_at_the_programs_server_use_its_access() -> None:
    made: list[HomeChoice] = []

    def make_home(choice: HomeChoice) -> Home:
        made.append(choice)
        return None  # type: ignore[return-value]

    found = HandedOver(server=SERVER, login=LOGIN)
    make = with_access(make_home, found, Wire().questions)
    own = {"server": SERVER, "context": "", "cluster": "", "in_cluster": False}
    for name, options in (
        ("kubernetes", own),
        ("kubernetes", own),
        ("kubernetes", {**own, "server": "https://other.test"}),
        ("kubernetes", {**own, "context": "x"}),
        ("kubernetes", {**own, "in_cluster": True}),
        ("embedded", {}),
    ):
        make(HomeChoice(name=name, options=options))
    access = [choice.options.get("access") for choice in made]
    assert isinstance(access[0], ClusterAccess)
    assert access[0].server == SERVER
    # One source of tokens for all.
    assert access == [access[0], access[0], None, None, None, None]
