"""While `sps ui` serves the page of the embedded service, terminals show its address."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator

from harness.embedded import embedded
from harness.processes import DEADLINE_S, REPOSITORY
from harness.programs import sps_running
from harness.terminals import screen

_CONNECTING = """
from shared_pathways_service import isc_pathways
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}):
    print("inside")
"""


@contextlib.contextmanager
def page() -> Iterator[str]:
    """Serves the page, and yields its address."""
    with sps_running("ui", "--no-browser", "--json") as command:
        assert command.stdout
        yield json.loads(command.stdout.readline())["url"]


def test_connect_shows_it() -> None:
    command = [sys.executable, "-c", _CONNECTING]
    with embedded(1), page() as url, screen(command, cwd=REPOSITORY) as terminal:
        terminal.expect("connected after")
        terminal.expect(f"page: {url}\r\n")
        terminal.expect("inside")


def test_serve_shows_it() -> None:
    command = [sys.executable, "-m", "shared_pathways_service.cli", "serve"]
    with page() as url, screen(command, cwd=REPOSITORY) as terminal:
        terminal.expect(f"Page: {url}\r\n")
        terminal.expect("ready")
        terminal.type("\x03")
        assert terminal.process.wait(DEADLINE_S) == 130
