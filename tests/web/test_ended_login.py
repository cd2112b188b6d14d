"""The page in Chromium once the login at its proxy has ended."""

from __future__ import annotations

import time
from http import HTTPStatus

import pytest
from aiohttp import web
from playwright.sync_api import Browser, expect

from harness.processes import DEADLINE_S
from harness.web_page import Script, in_thread
from shared_pathways_service.web.page_guard import USER_EXPIRES, ByPermissions, Refusal
from shared_pathways_service.web.page_server import PageParts, serving
from shared_pathways_service.web.service_feed import ServiceFeed

expect.set_options(timeout=DEADLINE_S * 1000)


class Ending(ByPermissions):
    """Lets in requests until the first stream; then sends the browser to a login, or refuses."""

    def __init__(self, *, redirects: bool) -> None:
        self.redirects = redirects
        self.streams = 0

    async def refusal(self, request: web.Request) -> Refusal | None:
        request[USER_EXPIRES] = time.time()
        is_stream = request.path == "/api/stream"
        self.streams += is_stream
        if self.streams < 1 + is_stream:
            return None
        if self.redirects:
            raise web.HTTPFound("http://127.0.0.1:9/login")
        return Refusal(status=HTTPStatus.UNAUTHORIZED, page="no")


@pytest.mark.parametrize("redirects", [False, True])
def test_a_login_that_has_ended_is_told_and_not_retried(
    browser: Browser, *, redirects: bool
) -> None:
    guard = Ending(redirects=redirects)
    feed = ServiceFeed(Script(), "kubernetes", interval_s=0.05)
    with (
        in_thread(serving(PageParts(feed=feed, guard=guard), 0)) as port,
        browser.new_context() as context,
    ):
        page = context.new_page()
        page.clock.install()
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#condition")).to_have_text("Your login has ended; reload the page.")
        asked = guard.streams
        page.clock.fast_forward(60_000)
        expect(page.locator("#condition")).to_have_text("Your login has ended; reload the page.")
        assert guard.streams == asked
