"""Waits for the end of a process that is not a child, without polling where possible."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
from collections.abc import Iterator

from shared_pathways_service.runtime.processes import Identity

__all__ = ["wait_for_end"]

#: Seconds between two checks on systems that need polling.
_LOOK_S = 0.5


async def wait_for_end(owner: Identity) -> None:
    """Returns when the process has ended, even if it is not reaped or its descriptors are open."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(_descriptor_of(owner.pid))
        except ProcessLookupError:
            return
        # The id may have been reused before the descriptor was opened, but not afterwards.
        if not owner.is_alive():
            return
        if descriptor is None:
            while owner.is_alive():  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(_LOOK_S)
            return
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        stack.callback(loop.remove_reader, descriptor)
        await ended.wait()


@contextlib.contextmanager
def _descriptor_of(pid: int) -> Iterator[int | None]:
    """Yields a descriptor that becomes readable when the process ends; None: not available."""
    if sys.platform == "linux":
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:  # a kernel older than 5.3, or a sandbox without the call
            yield None
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    elif hasattr(select, "kqueue"):
        queue = select.kqueue()
        try:
            event = select.kevent(
                pid,
                filter=select.KQ_FILTER_PROC,
                flags=select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
                fflags=select.KQ_NOTE_EXIT,
            )
            queue.control([event], 0)
            yield queue.fileno()
        finally:
            queue.close()
    else:
        yield None
