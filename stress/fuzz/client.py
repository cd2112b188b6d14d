"""A session whose requests may be changed before they are sent, and the changes."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from harness.deadlines import deadline
from harness.proxy.raw import RawClient
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2

DEADLINE_S = deadline(120.0)
#: Where, how (0 replaces, 1 inserts, 2 removes, 3 cuts off) and with what.
mutations = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 400), st.integers(0, 10_000)),
        st.integers(0, 3),
        st.integers(0, 255),
    ),
    max_size=3,
)


def mutated(data: bytes, how: Sequence[tuple[int, int, int]]) -> bytes:
    """Returns bytes that are a little wrong."""
    changed = bytearray(data)
    for where, kind, byte in how:
        at = where % (len(changed) + 1)
        if kind == 0 and at < len(changed):
            changed[at] = byte
        elif kind == 1:
            changed.insert(at, byte)
        elif kind == 2:
            del changed[at : at + 1 + byte % 4]
        elif kind == 3:
            del changed[at:]
    return bytes(changed)


def plausible(data: bytes, how: Sequence[tuple[int, int, int]]) -> bytes:
    """Returns bytes that are a little wrong and mostly a request still: others end the session."""
    if how and how[0][2] % 8 == 0:
        return mutated(data, how)
    for attempt in (how, [(where, 0, byte) for where, _, byte in how], how[:1]):
        changed = mutated(data, attempt)
        try:
            proxy_pb2.IfrtRequest.FromString(changed)
        except DecodeError:
            continue
        return changed
    return data


class FuzzClient(RawClient):
    """A session whose requests may be changed before they are sent.

    Args:
      address: Of the proxy.
      change: Applied to each request but the first.
      version: Of the protocol.
      shared: The proxy's directory for large buffers; the session gets its own directory in it.
      deadline_s: For the answer to the first request.
    """

    def __init__(
        self,
        address: str,
        change: Callable[[bytes], bytes] | None = None,
        *,
        version: int = ifrt.PROTOCOL_MAX,
        shared: Path | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.directory = None if shared is None else Path(tempfile.mkdtemp(dir=shared))
        named = {"sps_transfer_dir": self.directory.name.encode()} if self.directory else None
        super().__init__(address, version=version, initialization_data=named, send_init=False)
        self._unharmed = self._requests
        try:
            self.session_id = self.begin("init").result(deadline_s).session_id
        except BaseException:
            self.close()
            raise
        if change is not None:
            self._requests = _Changing(self._unharmed.put, change)  # type: ignore[assignment]

    def send_unharmed(self, data: bytes) -> None:
        self._unharmed.put(data)

    def close(self) -> None:
        self._requests = self._unharmed
        super().close()
        if self.directory is not None:
            # (The proxy removes files there at the same time.)
            shutil.rmtree(self.directory, ignore_errors=True)


@dataclasses.dataclass
class _Changing:
    deliver: Callable[[bytes], None]
    change: Callable[[bytes], bytes]

    def put(self, data: bytes) -> None:
        self.deliver(self.change(data))
