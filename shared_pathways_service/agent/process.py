"""The agent's process: runs one session, or the clean-up of earlier ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared_pathways_service.agent.channel import Channel
from shared_pathways_service.agent.deletion import HomeMaker, clean_up
from shared_pathways_service.agent.journal import Journal
from shared_pathways_service.agent.login_questions import LoginQuestions, with_access
from shared_pathways_service.agent.messages import (
    VERSION,
    MessageError,
    Start,
    handed_over_in,
    last_that_fit,
)
from shared_pathways_service.agent.owner import wait_for_end
from shared_pathways_service.agent.runner import Probe, SessionRunner
from shared_pathways_service.agent.scraping import SessionMeter, served
from shared_pathways_service.errors import ProxyFailed, SharedPathwaysError
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.runtime.file_failures import explained
from shared_pathways_service.runtime.processes import Identity, identity_of
from shared_pathways_service.session.messages import Cancelled, Snapshot

if TYPE_CHECKING:
    from shared_pathways_service.agent.metrics_sender import MetricsReporter

__all__ = ["serve"]

#: Maximum number of client requests that are answered concurrently.
_MOST_ANSWERS = 16
#: Maximum number of lines of a log per request; more would not fit into a message, unless they are
#: very short.
_MOST_LINES = 100_000

_log = logging.getLogger(__name__)


async def serve(descriptor: int, *, make_home: HomeMaker, probe: Probe) -> None:
    """Performs the request in the first message on the descriptor."""
    channel = await Channel.open(descriptor)
    try:
        channel.send({"type": "hello", "version": VERSION, "agent": identity_of().to_json()})
        messages = channel.messages()
        async with within(timeouts.AGENT_FIRST_MESSAGE):
            first = await anext(messages, None)
        if first is None:
            return
        if first["type"] == "cleanup":
            await _clean_up(first, channel, make_home)
        elif first["type"] == "start":
            await _run_session(first, messages, channel, make_home, probe)
        else:
            raise MessageError(f"a first message of type {first['type']}")
    except (SharedPathwaysError, MessageError, OSError) as error:
        _log.exception("the agent failed")
        if not isinstance(error, SharedPathwaysError):
            error = SharedPathwaysError(f"the agent failed: {error}")
        channel.send({"type": "ended", "error": error.to_json()})
    finally:
        await channel.close()


async def _clean_up(request: Mapping[str, Any], channel: Channel, make_home: HomeMaker) -> None:
    journal = Journal(Path(request["journal"]))
    entries = [entry for name in request["sessions"] if (entry := journal.read(name))]
    if (found := handed_over_in(request)) is not None:
        questions = LoginQuestions(channel.send, found.server)
        # (The program waits for the end, and has just read its login.)
        questions.end()
        make_home = with_access(make_home, found, questions)
    error = await clean_up(journal, entries, make_home)
    channel.send({"type": "ended", "error": error.to_json() if error else None})


async def _run_session(
    first: Mapping[str, Any],
    messages: AsyncIterator[dict[str, Any]],
    channel: Channel,
    make_home: HomeMaker,
    probe: Probe,
) -> None:
    start = Start.from_json(first)
    directory = Path(start.journal)
    with explained(directory.parent, "SPS_STATE_DIR"):
        journal = Journal(directory)
    reporter = _reporter(start, channel) if start.request.collect_service_metrics else None
    questions = None
    if start.handed_over is not None:
        questions = LoginQuestions(channel.send, start.handed_over.server)
        make_home = with_access(make_home, start.handed_over, questions)
    home = make_home(start.home)
    meter = SessionMeter(start, home.counters)

    def observe(snapshot: Snapshot) -> None:
        meter.observe(snapshot)
        if reporter is not None:
            reporter.observe(snapshot)

    async with reporter or contextlib.nullcontext():
        async with served(meter, start, channel.send) as metrics:
            runner = SessionRunner(
                start,
                home=home,
                journal=journal,
                probe=probe,
                send=channel.send,
                on_state=observe,
                on_event=meter.count,
                metrics=metrics,
            )
            _end_on_signals(runner, start.request.name)
            beside = [
                _listen(messages, channel, runner, questions),
                _watch_owner(start.owner, runner),
                _sweep(journal, make_home),
            ]
            async with _running(beside):
                end = await runner.run()
        if questions is not None:
            questions.end()
        # Deleting leftovers may take minutes, and the next agent needs the port.
        goes_on = bool(end.left) and not runner.is_hopeless
        left = journal.read(start.session) if goes_on else None
        lingers = left is not None or (reporter is not None and reporter.is_behind)
        channel.send({"type": "ended", "state": end.to_json(), "error": None, "lingers": lingers})
        if left is not None:
            # The client no longer waits, and the service may come back. Uses the session's home:
            # it had access before, so it does not treat missing credentials as permanent.
            await clean_up(journal, [left], lambda _: home, limit=timeouts.ORPHAN_DELETION)


def _end_on_signals(runner: SessionRunner, name: str) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        why = f"its agent received {number.name}"
        error = ProxyFailed(f"the proxy {name} was ended: {why}", hint="connect again")
        loop.add_signal_handler(number, runner.cancel, Cancelled(reason=why, error=error))


def _reporter(start: Start, channel: Channel) -> MetricsReporter:
    # Imported here because google-auth is slow to import.
    from shared_pathways_service.agent.metrics_sender import MetricsReporter  # noqa: PLC0415

    return MetricsReporter(start, channel.send)


@contextlib.asynccontextmanager
async def _running(coroutines: Sequence[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(_logged(coroutine)) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _logged(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        await coroutine
    except Exception:  # noqa: BLE001 - a background task must not fail the session
        _log.exception("%s failed", coroutine)


async def _listen(
    messages: AsyncIterator[dict[str, Any]],
    channel: Channel,
    runner: SessionRunner,
    questions: LoginQuestions | None,
) -> None:
    room = asyncio.Semaphore(_MOST_ANSWERS)
    async with asyncio.TaskGroup() as answers:
        async for message in messages:
            match message["type"]:
                case "close":
                    runner.cancel(Cancelled(reason=str(message.get("reason"))))
                case "logs" if room.locked():
                    # (Does not wait for the answers: the next message may be a close.)
                    text = f"{_MOST_ANSWERS} requests of this session are not answered yet"
                    error = SharedPathwaysError(text, hint="wait for their answers")
                    said = {"type": "reply", "id": message.get("id"), "error": error.to_json()}
                    channel.send(said)
                case "logs":
                    await room.acquire()
                    answer = answers.create_task(_logged(_answer_logs(message, channel, runner)))
                    answer.add_done_callback(lambda _: room.release())
                case "login" if questions is not None:
                    questions.answer(message)
                case other:
                    _log.warning("a message of unknown type %r was ignored", other)
        # The socket is closed at the end of a connection, or by a program that calls exec or closes
        # all descriptors: the client can no longer use this proxy.
        if questions is not None:
            questions.end()
        runner.cancel(_orphaned("the client closed its connection to the agent"))


async def _answer_logs(message: Mapping[str, Any], channel: Channel, runner: SessionRunner) -> None:
    reply = {"type": "reply", "id": message["id"]}
    try:
        lines = await runner.logs(min(int(message["lines"]), _MOST_LINES))
    except SharedPathwaysError as error:
        channel.send({**reply, "error": error.to_json()})
    else:
        channel.send({**reply, "lines": last_that_fit(lines)})


async def _watch_owner(owner: Identity, runner: SessionRunner) -> None:
    await wait_for_end(owner)
    runner.cancel(_orphaned("its owner has ended"))


def _orphaned(reason: str) -> Cancelled:
    return Cancelled(reason=reason, delete_timeout_s=timeouts.ORPHAN_DELETION.s)


async def _sweep(journal: Journal, make_home: HomeMaker) -> None:
    """Deletes leftovers of sessions whose owner and agent have ended."""
    abandoned = [entry for entry in journal.entries() if entry.abandoned]
    await clean_up(journal, abandoned, make_home)
    journal.drop_stale_drafts()
