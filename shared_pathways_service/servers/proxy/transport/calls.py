"""Maps methods to the service, the same for both gRPC servers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from shared_pathways_service.metrics import measurement_messages
from shared_pathways_service.protocol import callbacks_pb2, ifrt, profiles_pb2
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import StatusError
from shared_pathways_service.servers.proxy.callbacks.callbacks import Outbox
from shared_pathways_service.servers.proxy.limits import LARGEST_MESSAGE, Limits
from shared_pathways_service.servers.proxy.session.buffer_streams import Waiting
from shared_pathways_service.servers.proxy.session.service import ProxyService
from shared_pathways_service.servers.proxy.transport.late_requests import LateRequests
from shared_pathways_service.servers.proxy.transport.transfers import Transfers
from shared_pathways_service.servers.serving.call_threads import CallThreads

__all__ = ["CALLBACKS", "DOWNLOAD", "PROFILES", "SESSION", "UPLOAD", "Call", "Calls", "Served"]

#: A message of this size is always accepted: uploads come in pieces of 1 MiB.
_LARGEST_CHUNK = 4 << 20


def _path(method: str) -> str:
    return f"/{ifrt.SERVICE}/{method}"


SESSION = _path("IfrtSession")
#: A stream of messages, and one answer; and the other way round.
UPLOAD = _path("HostBufferStore")
DOWNLOAD = _path("HostBufferLookup")
#: Two streams, as long as a session's client serves callbacks.
CALLBACKS = f"/{callbacks_pb2.DESCRIPTOR.services_by_name['Callbacks'].full_name}/Serve"
#: Two streams, as long as one profile.
PROFILES = f"/{profiles_pb2.DESCRIPTOR.services_by_name['Profiles'].full_name}/Take"


class Served(Protocol):
    """What serves one client's stream of messages."""

    def attached(self, outbox: Outbox) -> AbstractContextManager[None]:
        """Sends messages to the client for the length of the block."""

    def receive(self, raw: bytes) -> None:
        """Handles a message of the client."""


class Call(Waiting, Protocol):
    """A call under way: it waits as long as its client does, on its own thread."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The client's metadata; bytes for keys that end in ``-bin``, else text."""

    def cancel(self) -> None:
        """Ends the call, on any thread."""


class Calls:
    """The methods of one proxy. Each may raise `StatusError`, the status of the call.

    Attributes:
      late: Watches requests that are awaited on the threads of calls with one request and answer.
      late_downloads: Watches those on the threads of uploads and downloads.
      plain: The methods with one request and one answer, by their paths.
      streams: What serves the methods with two streams of messages, for a call's metadata.
      longest_message: The longest message that is read: one that is a little too long gets an
        answer.
    """

    def __init__(self, service: ProxyService, plain: CallThreads) -> None:
        self.service = service
        self.transfers = Transfers(
            service.limits.transfers,
            service.limits.stalled_transfer,
            is_shared=lambda: len(service.sessions) > 1,
        )
        self.late, self.late_downloads = (
            LateRequests(
                service.limits.request_timeout_s,
                expected=service.count_buffers,
                waiting=functools.partial(_count_waiting, pool),
                threads=pool.most,
            )
            for pool in (plain, self.transfers.pool)
        )
        self.streams: Mapping[str, Callable[[Mapping[str, Any]], Served]] = {
            CALLBACKS: service.callbacks_of,
            PROFILES: service.profile_stream,
        }
        self.longest_message = _longest_message(service.limits)
        self.plain: Mapping[str, Callable[[bytes, Call], bytes]] = {
            _path("GetVersion"): lambda raw, _call: service.get_version(raw),
            _path("HostBufferDelete"): lambda raw, _call: service.delete(raw),
            _path("HostBufferReadFromDisk"): lambda raw, _call: service.read_from_disk(raw),
            f"/{measurement_messages.SERVICE}/{measurement_messages.METHOD}": self._get_counters,
        }

    def upload(self, messages: Iterable[bytes], call: Call) -> bytes:
        """Receives a host buffer."""
        with self.transfers.begin(call.cancel) as transfer:
            self.service.store(call.metadata, transfer.watched(messages))
        return b""

    def download(self, raw: bytes, call: Call) -> Iterator[bytes]:
        """Sends a host buffer."""
        with self.transfers.begin(call.cancel) as transfer:
            yield from transfer.watched(self.service.lookup(raw, call))

    def close(self) -> None:
        """Ends the watching; the calls end with their server."""
        self.late.close()
        self.late_downloads.close()
        self.transfers.close()

    def note_end(self, error: StatusError | None) -> None:
        """Logs the end of a session's requests."""
        if error is None:
            # gRPC does not report which of the two it was.
            glog(
                "I",
                "A session's stream has ended: its client ended it, or sent more than "
                f"{self.longest_message} bytes in one message (--max_message_bytes)",
            )
        else:
            glog("W", f"Ending a session: {error}")

    def _get_counters(self, _raw: bytes, call: Call) -> bytes:
        return self.service.get_counters(call.metadata.get("authorization", "").encode())


def _count_waiting(pool: CallThreads) -> int:
    return pool.waiting


def _longest_message(limits: Limits) -> int:
    return min(max(2 * limits.message_bytes, _LARGEST_CHUNK), LARGEST_MESSAGE)
