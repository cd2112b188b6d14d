"""The agent's questions for the login of a program that handed over its access to a cluster.

When the program has ended, its last login counts until the server refuses it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from shared_pathways_service.errors import AccessDenied, from_json
from shared_pathways_service.homes.base import Home
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.kube.errors import ApiUnreachable
from shared_pathways_service.kube.handed_over import HandedOver, Login
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["LoginQuestions", "with_access"]


class LoginQuestions:
    """Asks the program, one question at a time.

    Args:
      send: Sends a message to the program.
      server: The API server's URL, for messages.
    """

    def __init__(self, send: Callable[[Mapping[str, Any]], None], server: str) -> None:
        self._send = send
        self._server = server
        self._open: asyncio.Future[Mapping[str, Any]] | None = None
        self._has_ended = False

    async def ask(self) -> Login:
        """Returns the program's present login.

        Raises:
          AccessDenied: The program's hook failed, or the program has ended.
          ApiUnreachable: The program does not answer.
        """
        if self._has_ended:
            raise self._gone()
        if self._open is None:
            self._open = asyncio.get_running_loop().create_future()
            self._send({"type": "login"})
        try:
            async with within(timeouts.PROGRAM_LOGIN):
                message = await asyncio.shield(self._open)
        except TimeoutError as error:
            self._open = None
            cause = f"the program has not answered for {timeouts.PROGRAM_LOGIN.s:.0f} s"
            raise ApiUnreachable(
                f"cannot get a login from api_client: {cause}", server=self._server, cause=cause
            ) from error
        if message.get("error"):
            raise from_json(message["error"])
        if "login" not in message:
            raise self._gone()
        return Login(**message["login"])

    def answer(self, message: Mapping[str, Any]) -> None:
        """Takes the program's answer."""
        answered, self._open = self._open, None
        if answered is not None and not answered.done():
            answered.set_result(message)

    def end(self) -> None:
        """Ends the questions: the program no longer answers."""
        self._has_ended = True
        self.answer({})

    def _gone(self) -> AccessDenied:
        return AccessDenied(
            "the program that handed over its api_client no longer answers",
            verb="connect",
            resource="cluster",
        )


def with_access(
    make_home: Callable[[HomeChoice], Home], found: HandedOver, questions: LoginQuestions
) -> Callable[[HomeChoice], Home]:
    """Returns a maker of homes that uses the access of a program for sessions at its server."""
    # Imported here because only agents with such access need it.
    from shared_pathways_service.kube.given_access import access_of  # noqa: PLC0415

    # (Once for all sessions: it has the source of their tokens.)
    access = functools.cache(lambda: access_of(found, questions.ask))

    def make(choice: HomeChoice) -> Home:
        if choice.server_handed_over != found.server:
            return make_home(choice)
        options = {**choice.options, "access": access()}
        return make_home(dataclasses.replace(choice, options=options))

    return make
