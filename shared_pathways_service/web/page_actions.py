"""Acts on a service for a page that may do so, with the rights of the user of `sps ui`."""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from shared_pathways_service.api.validation import check_dns_label
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.operations.slice_marks import MarkVerb, mark_slice
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.location import with_package_path
from shared_pathways_service.web.service_feed import ServiceFeed

__all__ = ["PageActions"]

_Body = Mapping[str, Any]


class PageActions:
    """The actions of a page. Each takes the fields of its request, and returns a sentence.

    Args:
      feed: The service.
      delete_command: `sps delete --json`, without the connection's name. It is run as a process: it
        then does what a user's `sps delete` does, with the same checks and rights.

    Attributes:
      csrf_token: The text that a request for an action must show.
    """

    def __init__(self, feed: ServiceFeed, delete_command: Sequence[str]) -> None:
        self._feed = feed
        self._delete_command = delete_command
        self._deletions: set[asyncio.Task[str]] = set()
        self.csrf_token = secrets.token_urlsafe(32)
        self._by_name: Mapping[str, Callable[[_Body], Awaitable[str]]] = {
            "cordon": lambda body: self._mark("cordon", body),
            "drain": lambda body: self._mark("drain", body),
            "uncordon": lambda body: self._mark("uncordon", body),
            "delete": self._delete,
            "reserve": self._reserve,
            "unreserve": self._unreserve,
        }

    async def act(self, name: str, body: _Body) -> str:
        """Carries out an action.

        Raises:
          InvalidRequestError: There is no such action, or a field is not valid.
          SharedPathwaysError: The service does not answer, or refuses.
        """
        action = self._by_name.get(name)
        if action is None:
            raise InvalidRequestError("action", name, f"one of {', '.join(self._by_name)}")
        return await action(body)

    async def _mark(self, verb: MarkVerb, body: _Body) -> str:
        slice_id = _text_in(body, "slice")
        marked = await mark_slice(await self._feed.manager(), verb, slice_id)
        return marked.sentence

    async def close(self) -> None:
        """Waits for the connections that are being deleted, then ends what deletes them."""
        if self._deletions:
            _, late = await asyncio.wait(self._deletions, timeout=timeouts.PAGE_DELETIONS_END.s)
            for deletion in late:
                deletion.cancel()
            if late:
                await asyncio.wait(late)

    async def _delete(self, body: _Body) -> str:
        name = _text_in(body, "name")
        check_dns_label("name", name)
        deletion = asyncio.create_task(self._run_delete_command(name))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)
        # A page that is closed does not stop a deletion half-way.
        return await asyncio.shield(deletion)

    async def _run_delete_command(self, name: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *self._delete_command,
            name,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=with_package_path(os.environ),
            # Ctrl-C ends the page, which waits for this.
            start_new_session=True,
        )
        try:
            async with within(timeouts.PAGE_DELETION):
                answer, told = await process.communicate()
        except TimeoutError:
            raise SharedPathwaysError(
                f"{name} has not ended within {timeouts.PAGE_DELETION.s:g} s",
                hint="`sps list` shows its state",
            ) from None
        finally:
            await _end(process)
        if process.returncode:
            message, _, hint = told.decode(errors="replace").strip().partition(" hint: ")
            raise SharedPathwaysError(message.removeprefix("error: "), hint=hint)
        return f"{name} {'is deleted' if json.loads(answer)['deleted'] else 'had already ended'}"

    async def _reserve(self, body: _Body) -> str:
        user, team = _text_in(body, "user", ""), _text_in(body, "team", "")
        if bool(user) == bool(team):
            raise InvalidRequestError("user", user, "a user, or a team")
        request = pb.ReserveSlicesRequest(
            instance_type=_text_in(body, "instance_type"),
            count=_count_in(body, "count"),
            user=user,
            team=team,
            starts=0.0,
            # Negative: from now, by the service's clock.
            ends=-3600.0 * _number_in(body, "hours", 24 * 366),
        )
        manager = await self._feed.manager()
        made = (await manager.ask(manager.stub.ReserveSlices, request)).reservation
        return f"{made.count} x {made.instance_type} are reserved for {user or team}: {made.name}"

    async def _unreserve(self, body: _Body) -> str:
        name = _text_in(body, "reservation")
        manager = await self._feed.manager()
        await manager.ask(manager.stub.CancelReservation, pb.CancelReservationRequest(name=name))
        return f"{name} is cancelled"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends a process that runs, and kills it if it does not end in time."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with within(timeouts.PAGE_COMMAND_END):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _text_in(body: _Body, field: str, default: str | None = None) -> str:
    value = body.get(field, default)
    if not isinstance(value, str):
        raise InvalidRequestError(field, value, "a text")
    return value


def _count_in(body: _Body, field: str) -> int:
    value = body.get(field)
    if type(value) is not int or not 0 < value < 2**31:
        raise InvalidRequestError(field, value, "a whole number above 0")
    return value


def _number_in(body: _Body, field: str, most: float) -> float:
    value = body.get(field)
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 < value < most:
        raise InvalidRequestError(field, value, "a number above 0")
    return float(value)
