"""What a page complains about while it is looked at: failed requests, errors, warnings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Page, Request, Response

__all__ = ["without_complaints"]

#: How Chromium begins its own line on the console about an answer, which is noted as an answer.
_REFUSED = "Failed to load resource: the server responded with a status of "


@contextlib.contextmanager
def without_complaints(page: Page, *allowed: str) -> Iterator[None]:
    """Fails if a page complains in the block.

    Args:
      page: Opened in the block.
      allowed: Refused requests that are wanted, such as ``404 /api/log``.
    """
    complaints: list[str] = []

    def answered(response: Response) -> None:
        if response.status >= 400:
            complaints.append(f"{response.status} {urlsplit(response.url).path}")

    def failed(request: Request) -> None:
        complaints.append(f"{request.failure} {urlsplit(request.url).path}")

    def said(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not message.text.startswith(_REFUSED):
            complaints.append(message.text)

    page.on("response", answered)
    page.on("requestfailed", failed)
    page.on("console", said)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield
    unwanted = [one for one in complaints if one not in allowed]
    assert unwanted == [], unwanted
