"""Acts on a service for a page that may do so, with the rights of the user of `sps ui`."""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from shared_pathways_service.api.validation import check_dns_label
from shared_pathways_service.errors import (
    InvalidRequestError,
    ServiceNotFound,
    SharedPathwaysError,
)
from shared_pathways_service.operations.slice_marks import MarkVerb, mark_slice
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.location import with_package_path
from shared_pathways_service.web.jobs_feed import JobsFeed
from shared_pathways_service.web.service_feed import ServiceFeed

__all__ = ["PageActions"]

_Body = Mapping[str, Any]


class PageActions:
    """The actions of a page. Each takes the fields of its request, and returns a sentence.

    Args:
      feed: The service.
      delete_command: `sps delete --json`, without the connection's name. It is run as a process: it
        then does what a user's `sps delete` does, with the same checks and rights.
      jobs: This user's submitted jobs.
      submit_command: `sps submit --json`, without the program and its options; run as that is.
      profile_command: `sps profile --json` with its options, without the connection's name; run as
        that is.

    Attributes:
      csrf_token: The text that a request for an action must show.
    """

    def __init__(
        self,
        feed: ServiceFeed,
        delete_command: Sequence[str],
        *,
        jobs: JobsFeed,
        submit_command: Sequence[str] = (),
        profile_command: Sequence[str] = (),
    ) -> None:
        self._feed = feed
        self._delete_command = delete_command
        self._submit_command = submit_command
        self._profile_command = profile_command
        self._jobs = jobs
        #: Calls that go on although their page is closed.
        self._started: set[asyncio.Task[str]] = set()
        self.csrf_token = secrets.token_urlsafe(32)
        self._by_name: Mapping[str, Callable[[_Body], Awaitable[str]]] = {
            "cordon": lambda body: self._mark("cordon", body),
            "drain": lambda body: self._mark("drain", body),
            "uncordon": lambda body: self._mark("uncordon", body),
            "delete": self._delete,
            "profile": self._profile,
            "reserve": self._reserve,
            "unreserve": self._unreserve,
            "cancel-job": self._cancel_job,
            "submit-again": self._submit_again,
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
        """Waits for what was started, such as deletions, then ends it."""
        if self._started:
            _, late = await asyncio.wait(self._started, timeout=timeouts.PAGE_CALLS_END.s)
            for call in late:
                call.cancel()
            if late:
                await asyncio.wait(late)

    async def _delete(self, body: _Body) -> str:
        name = _name_in(body)
        return await self._finish(self._run_delete_command(name))

    async def _finish(self, call: Coroutine[Any, Any, str]) -> str:
        """Makes a call whole, also for a page that is closed before it ends."""
        task = asyncio.create_task(call)
        self._started.add(task)
        task.add_done_callback(self._started.discard)
        return await asyncio.shield(task)

    async def _run_delete_command(self, name: str) -> str:
        told = await _answer([*self._delete_command, name], f"{name} has not ended")
        return f"{name} {'is deleted' if told['deleted'] else 'had already ended'}"

    async def _profile(self, body: _Body) -> str:
        name = _name_in(body)
        return await self._finish(self._run_profile_command(name))

    async def _run_profile_command(self, name: str) -> str:
        told = await _answer([*self._profile_command, name], f"the profile of {name} has not ended")
        missing = "".join(f"; {note}" for note in told["notes"])
        return f"{name} is profiled: {told['directory']}{missing}"

    async def _cancel_job(self, body: _Body) -> str:
        name = _name_in(body)
        return await self._finish(self._jobs.cancel(name))

    async def _submit_again(self, body: _Body) -> str:
        name = _text_in(body, "name")
        job = next((one for one in await self._jobs.all_jobs() if one["name"] == name), None)
        if job is None:
            raise ServiceNotFound(f"there is no job {name}")
        words = [f"--workdir={job['workdir']}", f"--retries={job['retries']}"]
        words += [f"--slices={kind}={count}" for kind, count in job["slices"].items()]
        return await self._finish(self._run_submit_command([*words, "--", *job["command"]]))

    async def _run_submit_command(self, words: Sequence[str]) -> str:
        told = await _answer([*self._submit_command, *words], "the job was not accepted")
        self._jobs.forget()
        return f"submitted as {told['name']}"

    async def _reserve(self, body: _Body) -> str:
        user, team = _text_in(body, "user", ""), _text_in(body, "team", "")
        if bool(user) == bool(team):
            raise InvalidRequestError("user", user, "a user, or a team")
        begin_s = 3600.0 * _number_in(body, "begin_hours", 24 * 366, default=0.0)
        length_s = 3600.0 * _number_in(body, "hours", 24 * 366)
        request = pb.ReserveSlicesRequest(
            instance_type=_text_in(body, "instance_type"),
            count=_count_in(body, "count"),
            user=user,
            team=team,
            # Negative: from now, by the service's clock.
            starts=-begin_s,
            ends=-(begin_s + length_s),
        )
        manager = await self._feed.manager()
        made = (await manager.ask(manager.stub.ReserveSlices, request)).reservation
        return f"{made.count} x {made.instance_type} are reserved for {user or team}: {made.name}"

    async def _unreserve(self, body: _Body) -> str:
        name = _text_in(body, "reservation")
        manager = await self._feed.manager()
        await manager.ask(manager.stub.CancelReservation, pb.CancelReservationRequest(name=name))
        return f"{name} is cancelled"


async def _answer(command: Sequence[str], late: str) -> dict[str, Any]:
    """Runs an `sps` command; returns what it printed as JSON.

    Args:
      command: The command.
      late: What is not so if the command does not end in time.

    Raises:
      SharedPathwaysError: It failed, or did not end in time.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=with_package_path(os.environ),
        # Ctrl-C ends the page, which waits for this.
        start_new_session=True,
    )
    try:
        async with within(timeouts.PAGE_COMMAND):
            answer, told = await process.communicate()
    except TimeoutError:
        raise SharedPathwaysError(
            f"{late} within {timeouts.PAGE_COMMAND.s:g} s", hint="`sps list` shows its state"
        ) from None
    finally:
        await _end(process)
    if process.returncode:
        message, _, hint = told.decode(errors="replace").strip().partition(" hint: ")
        raise SharedPathwaysError(message.removeprefix("error: "), hint=hint)
    found: dict[str, Any] = json.loads(answer)
    return found


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


def _name_in(body: _Body) -> str:
    """Returns the name of a connection or a job, which no command takes for an option."""
    name = _text_in(body, "name")
    check_dns_label("name", name)
    return name


def _count_in(body: _Body, field: str) -> int:
    value = body.get(field)
    if type(value) is not int or not 0 < value < 2**31:
        raise InvalidRequestError(field, value, "a whole number above 0")
    return value


def _number_in(body: _Body, field: str, most: float, *, default: float | None = None) -> float:
    """Returns a number above 0, or the default."""
    value = body.get(field, default)
    if default is not None and value == default:
        return default
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 < value < most:
        raise InvalidRequestError(field, value, "a number above 0")
    return float(value)
