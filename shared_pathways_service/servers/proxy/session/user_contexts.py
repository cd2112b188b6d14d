"""Returns user contexts to a client: the places in its program that made requests.

JAX's client names a *user context* with each request, and keeps its traceback until an answer says
that it is no longer referred to: half a kilobyte per execution. This server never refers to one,
so each goes back with the answer to its own request.

The client (jaxlib 0.10.2) handles these notices in the order of their answers' `seq_num`, from 0
up; it waits for a missing one, and for an answer that it still refers to, as it does to the first
of a session for good. So only answers that a client drops at once get a place in the order; the
others' contexts go back with one of those. The client trusts the notices: it crashes if a context
comes back more often than it was sent.
"""

from __future__ import annotations

import itertools
from collections import deque

from shared_pathways_service.protocol.ifrt import proxy_pb2

__all__ = ["UserContexts"]

#: Answers with a place in the order: to requests that programs repeat.
_IN_ORDER = frozenset(
    f"{kind}_response"
    for kind in (
        "assemble_array_from_single_device_arrays",
        "bitcast_arrays",
        "check_value_ready",
        "copy_arrays",
        "copy_to_host_buffer",
        "disassemble_into_single_device_arrays",
        "fully_replicated_shard",
        "loaded_executable_execute",
        "make_array_from_host_buffer",
        "make_arrays_from_host_buffer_shards",
        "remap_arrays",
        "reshard_arrays",
    )
)
#: The number of all others: its turn never comes.
_ASIDE = (1 << 63) - 1
#: Contexts that wait for an answer; beyond that they are not returned.
_MOST_OWED = 4096
#: Contexts that one answer gives back in addition to its own, so that it stays small.
_AT_ONCE = 256


class UserContexts:
    """Numbers a session's answers, and gives user contexts back. Thread-safe."""

    __slots__ = ("_next", "_owed", "_unused")

    def __init__(self) -> None:
        # Used without a lock: each call is atomic.
        self._next = itertools.count().__next__
        self._unused: deque[int] = deque()
        self._owed: deque[int] = deque(maxlen=_MOST_OWED)

    def give_back(self, response: proxy_pb2.IfrtResponse, context: int) -> None:
        """Gives a request's context, unless it is 0, back with an otherwise complete answer."""
        metadata = response.response_metadata
        if response.WhichOneof("response") not in _IN_ORDER:
            metadata.seq_num = _ASIDE
            self.owe(context)
            return
        numbers = _taken(self._unused, 1) if self._unused else ()
        metadata.seq_num = numbers[0] if numbers else self._next()
        if context:
            metadata.destroyed_user_context_ids.append(context)
        if self._owed:
            metadata.destroyed_user_context_ids.extend(_taken(self._owed, _AT_ONCE))

    def owe(self, context: int) -> None:
        """Leaves a context for another answer to give back."""
        if context:
            self._owed.append(context)

    def undo(self, response: proxy_pb2.IfrtResponse) -> None:
        """Undoes `give_back` for an answer that was not sent."""
        metadata = response.response_metadata
        self._owed.extend(metadata.destroyed_user_context_ids)
        if metadata.seq_num != _ASIDE:
            self._unused.append(metadata.seq_num)


def _taken(items: deque[int], count: int) -> list[int]:
    """Takes some contexts; other threads take them as well."""
    taken = []
    try:
        for _ in range(count):
            taken.append(items.popleft())  # noqa: PERF401 - what was taken counts
    except IndexError:
        pass
    return taken
