"""``python -m shared_pathways_service.agent DESCRIPTOR``: started by a client, not by people."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

from shared_pathways_service.agent.deletion import HomeMaker
from shared_pathways_service.agent.homes import make_home
from shared_pathways_service.agent.probing import probe
from shared_pathways_service.agent.process import serve
from shared_pathways_service.agent.runner import Probe

__all__ = ["main"]


def main(
    arguments: Sequence[str], *, make_home: HomeMaker = make_home, probe: Probe = probe
) -> None:
    """Runs the agent.

    Args:
      arguments: The descriptor of its end of the socket pair.
      make_home: Makes homes by their names; a test's own.
      probe: Asks a proxy whether it answers; a test's own.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(serve(int(arguments[0]), make_home=make_home, probe=probe))


if __name__ == "__main__":
    main(sys.argv[1:])
