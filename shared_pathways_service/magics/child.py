"""Runs `sps` as a child of a notebook's kernel, and ends it when the kernel has ended.

A kernel may be killed, so the child watches a pipe whose other end only the kernel has.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from shared_pathways_service.cli import main
from shared_pathways_service.patience import timeouts

__all__ = ["run"]


def run(arguments: list[str]) -> None:
    """Runs a command.

    Args:
      arguments: The pipe's descriptor, then those of `sps`.
    """
    descriptor, *words = arguments
    threading.Thread(target=_end_with_kernel, args=(int(descriptor),), daemon=True).start()
    main(words)


def _end_with_kernel(descriptor: int) -> None:
    os.read(descriptor, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(timeouts.KERNEL_COMMAND_END.s)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run(sys.argv[1:])
