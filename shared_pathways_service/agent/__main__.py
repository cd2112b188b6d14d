"""Runs ``python -m shared_pathways_service.agent DESCRIPTOR``, which only clients start."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence
from typing import TextIO

from shared_pathways_service.agent.deletion import HomeMaker
from shared_pathways_service.agent.probing import probe
from shared_pathways_service.agent.process import serve
from shared_pathways_service.agent.runner import Probe
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.homes.choice import make_home
from shared_pathways_service.runtime import allocator, descriptors
from shared_pathways_service.runtime.glog import json_line, severity_of
from shared_pathways_service.runtime.inherited_signals import reset_inherited_signals
from shared_pathways_service.runtime.settings import Settings

__all__ = ["main"]

#: Maximum length of an agent's log, in characters.
_LOG_LIMIT = 4 << 20
#: Bytes of freed memory that the agent keeps for the next messages of a link.
_KEPT_BYTES = 32 << 20


class _JsonFormatter(logging.Formatter):
    """Formats records like servers: one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        where = f"{record.filename}:{record.lineno}"
        severity, text = severity_of(record), super().format(record)
        return json_line(severity, record.created, where, text).rstrip("\n")


class _BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes until the log reaches its maximum length."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._left = _LOG_LIMIT
        # (The client has reported invalid settings.)
        with contextlib.suppress(SharedPathwaysError):
            if Settings.load().log_format == "json":
                self.setFormatter(_JsonFormatter())

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        self._left -= len(text)
        return text

    def emit(self, record: logging.LogRecord) -> None:
        if self._left > 0:
            super().emit(record)


def main(
    arguments: Sequence[str], *, make_home: HomeMaker = make_home, probe: Probe = probe
) -> None:
    """Runs the agent with the descriptor of its end of the socket pair; tests replace the rest."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        handlers=[_BoundedHandler()],
    )
    reset_inherited_signals()
    allocator.keep(_KEPT_BYTES)
    # For the agent's tunnels, and for a service that it may start.
    descriptors.raise_limit()
    asyncio.run(serve(int(arguments[0]), make_home=make_home, probe=probe))


if __name__ == "__main__":
    main(sys.argv[1:])
