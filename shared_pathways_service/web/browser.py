"""Opens the page in the user's browser."""

from __future__ import annotations

import contextlib
import html
import os
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["has_browser", "opened_in_browser"]

_PAGE = """\
<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>Opening the service</title>
<p><a href="{url}">Open the service</a></p>
"""


def has_browser(environ: Mapping[str, str]) -> bool:
    """Whether a browser has a screen to open on, or the user named one in BROWSER."""
    named = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(environ.get(name) for name in named)


@contextlib.contextmanager
def opened_in_browser(url: str, directory: Path) -> Iterator[None]:
    """Opens an address with a token in the browser; the block is the time for which it is served.

    The browser is given a file of this user alone, which leads to the address: arguments of
    processes, such as the address itself, are visible to all users of the machine.

    Args:
      url: The address.
      directory: A private directory, for the file.
    """
    descriptor, name = tempfile.mkstemp(prefix="ui-", suffix=".html", dir=directory)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(_PAGE.format(url=html.escape(url)))
        # (Some browsers return only when they are closed.)
        threading.Thread(target=webbrowser.open, args=(path.as_uri(),), daemon=True).start()
        yield
    finally:
        path.unlink(missing_ok=True)
