"""When a token is fetched again, by a clock of the test's."""

from __future__ import annotations

import asyncio

import pytest

from harness.deadlines import deadline
from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube.tokens import Token, TokenSource, static_token


class Issuer:
    """Gives tokens that live an hour; fails while `error` is set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.life_s: float | None = 3600.0
        self.fetched = 0
        self.error: AccessDenied | None = None

    async def fetch(self) -> Token:
        self.fetched += 1
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        until = None if self.life_s is None else self.now + self.life_s
        return Token(header=f"Bearer {self.fetched}", expires_at=until)

    def source(self) -> TokenSource:
        return TokenSource(self.fetch, now=lambda: self.now)


def test_concurrent_callers_share_one_fetch() -> None:
    issuer = Issuer()

    async def work() -> None:
        source = issuer.source()
        assert await asyncio.gather(*(source.header() for _ in range(10))) == ["Bearer 1"] * 10

    asyncio.run(work())


def test_renewed_before_it_expires() -> None:
    issuer = Issuer()

    async def work() -> None:
        source = issuer.source()
        assert await source.header() == "Bearer 1"
        issuer.now += 3600 - 301
        assert await source.header() == "Bearer 1"
        issuer.now += 2
        assert await source.header() == "Bearer 2"

    asyncio.run(work())


def test_short_life_is_used_for_the_most_part() -> None:
    issuer = Issuer()
    issuer.life_s = 40.0

    async def work() -> None:
        source = issuer.source()
        await source.header()
        issuer.now += 29
        assert await source.header() == "Bearer 1"
        issuer.now += 2
        assert await source.header() == "Bearer 2"

    asyncio.run(work())


def test_refused_token_is_replaced_once() -> None:
    issuer = Issuer()
    issuer.life_s = None

    async def work() -> None:
        source = issuer.source()
        first = await source.header()
        source.refused(first)
        assert await source.header() == "Bearer 2"
        # Somebody else's request with the first one comes back later.
        source.refused(first)
        assert await source.header() == "Bearer 2"

    asyncio.run(work())


def test_failed_renewal_counts_only_when_the_last_token_has_expired(
    caplog: pytest.LogCaptureFixture,
) -> None:
    issuer = Issuer()

    async def work() -> None:
        source = issuer.source()
        await source.header()
        issuer.error = AccessDenied("log in again")
        issuer.now += 3500
        assert await source.header() == "Bearer 1"
        assert "log in again" in caplog.text
        # Not with every request: the next try is later.
        assert await source.header() == "Bearer 1"
        assert issuer.fetched == 2
        issuer.now += 101
        assert source.has_worked
        with pytest.raises(AccessDenied):
            await source.header()
        issuer.error = None
        assert await source.header() == "Bearer 4"

    asyncio.run(work())


def test_a_hanging_renewal_delays_no_caller_with_a_valid_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPS_PATIENCE", "0.05")
    issuer = Issuer()
    waited: list[float | None] = []
    wait = asyncio.wait

    async def noted(tasks: set[asyncio.Task[Token]], *, timeout: float | None = None) -> object:
        waited.append(timeout)
        return await wait(tasks, timeout=timeout)

    monkeypatch.setattr("shared_pathways_service.kube.tokens.asyncio.wait", noted)

    async def hang() -> Token:
        if issuer.fetched:
            await asyncio.Event().wait()
        return await issuer.fetch()

    async def work() -> None:
        source = TokenSource(hang, now=lambda: issuer.now)
        await source.header()
        issuer.now += 3500
        for _ in range(3):
            assert await source.header() == "Bearer 1"
        assert len(waited) == 1, "only the first one waits at all"
        await source.close()

    asyncio.run(work())


def test_a_fetch_outlives_its_first_caller() -> None:
    issuer = Issuer()

    async def work() -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        async def slow() -> Token:
            begun.set()
            await go.wait()
            return await issuer.fetch()

        source = TokenSource(slow, now=lambda: issuer.now)
        hurried = asyncio.create_task(source.header())
        await begun.wait()
        hurried.cancel()
        await asyncio.wait({hurried})
        assert hurried.cancelled()
        patient = asyncio.create_task(source.header())
        go.set()
        assert await patient == "Bearer 1"
        assert issuer.fetched == 1

    asyncio.run(work())


def test_closing_does_not_cancel_a_shared_fetch() -> None:
    issuer = Issuer()

    async def work() -> None:
        begun = asyncio.Event()

        async def hang_once() -> Token:
            if not begun.is_set():
                begun.set()
                await asyncio.Event().wait()
            return await issuer.fetch()

        source = TokenSource(hang_once, now=lambda: issuer.now)
        asking = asyncio.create_task(source.header())
        await begun.wait()
        await source.close()
        assert await asking == "Bearer 1"

    asyncio.run(work())


def test_token_that_this_machines_clock_takes_for_expired_is_used() -> None:
    issuer = Issuer()
    issuer.life_s = -60.0

    async def work() -> None:
        source = issuer.source()
        assert await source.header() == "Bearer 1"
        assert await source.header() == "Bearer 2"
        assert issuer.fetched == 2

    asyncio.run(asyncio.wait_for(work(), deadline(60.0)))


def test_fetch_that_stumbles_is_not_tried_again_at_once() -> None:
    issuer = Issuer()

    async def stumble() -> Token:
        if issuer.fetched:
            issuer.fetched += 1
            raise OSError("no space left on device")
        return await issuer.fetch()

    async def work() -> None:
        source = TokenSource(stumble, now=lambda: issuer.now)
        assert await source.header() == "Bearer 1"
        issuer.now += 3500
        assert await source.header() == "Bearer 1"
        assert await source.header() == "Bearer 1"
        assert issuer.fetched == 2
        issuer.now += 101
        with pytest.raises(OSError, match="no space"):
            await source.header()

    asyncio.run(asyncio.wait_for(work(), deadline(60.0)))


def test_a_slow_fetch_is_reported() -> None:
    issuer = Issuer()

    async def work() -> None:
        go = asyncio.Event()

        async def slow() -> Token:
            await go.wait()
            return await issuer.fetch()

        source = TokenSource(slow, now=lambda: issuer.now)
        awaited: list[bool] = [source.awaited_s is not None]
        asking = asyncio.create_task(source.header())
        await asyncio.sleep(0)
        awaited.append(source.awaited_s is not None)
        go.set()
        await asking
        awaited.append(source.awaited_s is not None)
        assert awaited == [False, True, False]

    asyncio.run(work())


def test_static_token_and_none() -> None:
    assert asyncio.run(static_token("Bearer x").header()) == "Bearer x"
    assert asyncio.run(static_token().header()) == ""
    assert "secret" not in repr(Token(header="Bearer secret"))
