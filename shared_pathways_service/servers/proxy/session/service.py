"""The service as the transport sees it: calls with bytes in and bytes out, no gRPC."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_pathways_service.metrics.families import Family
from shared_pathways_service.metrics.measurement_messages import message_of
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import ifrt, proxy_status_pb2
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.runtime import allocator
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.callbacks.callbacks import SessionCallbacks
from shared_pathways_service.servers.proxy.engine.engine import Engine
from shared_pathways_service.servers.proxy.execution.virtual_slices import SliceChange, Work
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.proxy.memory import HostMemory
from shared_pathways_service.servers.proxy.profiles.profile_stream import ProfileStream
from shared_pathways_service.servers.proxy.profiles.profiles import Profiles
from shared_pathways_service.servers.proxy.session import buffer_streams
from shared_pathways_service.servers.proxy.session.answers import Answers
from shared_pathways_service.servers.proxy.session.buffers import (
    BufferStore,
    HostBuffer,
    count_files,
    remove_directory,
    take_file,
)
from shared_pathways_service.servers.proxy.session.counters import families
from shared_pathways_service.servers.proxy.session.handlers import HANDLERS, NAMED_RESULTS
from shared_pathways_service.servers.proxy.session.handshake import (
    check_token,
    common_version,
    compare_jaxlib,
    parse,
    transfer_dir,
)
from shared_pathways_service.servers.proxy.session.request_counts import RequestCounts, Transferred
from shared_pathways_service.servers.proxy.session.session import Session
from shared_pathways_service.servers.serving.turns import wait_for_event

__all__ = ["ProxyService"]

#: The size of the name by which a session's stream of callbacks finds it.
_NONCE_BYTES = 16


class ProxyService:
    """Sessions, and the host buffers that belong to them. Every method may raise `StatusError`.

    Args:
      engine: The engine that computes.
      token: The token that a session must send; None: none.
      large_transfer_dir: The directory below which clients leave large buffers, each in the
        directory that it names as `sps_transfer_dir` in its initialization_data.
      on_session_end: Called at the end of each session with its operations that still run.
      limits: The limits of clients.
      newest_version: The newest version of the protocol to offer.
      more_counters: Returns further counters of this process.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        token: str | None = None,
        large_transfer_dir: Path | None = None,
        on_session_end: Callable[[Sequence[Work]], None] = lambda _running: None,
        limits: Limits | None = None,
        newest_version: int | None = None,
        more_counters: Callable[[], list[Family]] = list,
    ) -> None:
        self.limits = limits or Limits()
        self._more_counters = more_counters
        self._newest_version = newest_version or ifrt.PROTOCOL_MAX
        self.host_memory = HostMemory(self.limits.host_memory_bytes)
        self._engine = engine
        self._profiles = Profiles(engine, self.limits, self.host_memory)
        self._token = token
        self._large_transfer_dir = large_transfer_dir
        self._on_session_end = on_session_end
        self._sessions: dict[int, Session] = {}
        # By the names that their clients gave as sps_callbacks.
        self._callbacks: dict[bytes, SessionCallbacks] = {}
        # The callbacks of ended sessions.
        self._ended = RequestCounts()
        self._opened = 0
        self._callbacks_made = 0
        self._received = Transferred()
        self._sent = Transferred()
        self._lock = threading.Lock()
        engine.slices.add_listener(self._free_lost)

    @property
    def sessions(self) -> Sequence[Session]:
        """The open sessions."""
        with self._lock:
            return list(self._sessions.values())

    def _free_lost(self, change: SliceChange) -> None:
        for session in self.sessions:
            session.free_lost(change.old)

    def session(self, session_id: int) -> Session:
        """Returns an open session."""
        session = self._sessions.get(session_id)
        if session is None:
            raise StatusError(Code.NOT_FOUND, "there is no session with that id")
        return session

    def get_version(self, raw: bytes) -> bytes:
        """Agrees on a version with a client."""
        request = parse(proxy_pb2.GrpcGetVersionRequest, raw)
        version = common_version(request.min_version, request.max_version, self._newest_version)
        return proxy_pb2.GrpcGetVersionResponse(version=version).SerializeToString()

    def open_session(self, metadata: Mapping[str, bytes], answers: Answers) -> Session:
        """Opens a session with the metadata of its stream."""
        message = parse(proxy_pb2.GrpcIfrtSessionMetadata, metadata.get(ifrt.SESSION_METADATA, b""))
        offered = message.initialization_data.attributes
        if self._token is not None:
            shown = offered["sps_token"].string_value if "sps_token" in offered else b""
            check_token(shown, self._token)
        version = common_version(message.version, message.version, self._newest_version)
        directory = (
            offered["sps_transfer_dir"].string_value if "sps_transfer_dir" in offered else b""
        )
        if "sps_jaxlib_version" in offered:
            compare_jaxlib(offered["sps_jaxlib_version"].string_value)
        # The client learns of its placements by another way, and may be here before this proxy
        # does: its first programs would fail as if it had lost its slices.
        wait_for_event(self._engine.slices.granted, timeouts.SLICES_GRANTED.s)
        with self._lock:
            if len(self._sessions) >= self.limits.sessions:
                raise StatusError(
                    Code.RESOURCE_EXHAUSTED,
                    "one more session is needed; the limit (--max_sessions) is "
                    f"{self.limits.sessions}, of which {len(self._sessions)} are open",
                )
            # Its other streams send this instead of the token. An int64 in some clients: 63 bits.
            session_id = secrets.randbits(63)
            session = Session(
                session_id,
                self._engine,
                handlers=HANDLERS,
                named_results=NAMED_RESULTS,
                version=version.protocol_version,
                answers=answers,
                limits=self.limits,
                host_memory=self.host_memory,
            )
            # Here: another session of the same directory may be about to remove it.
            session.transfer_dir = transfer_dir(self._large_transfer_dir, directory)
            if "sps_callbacks" in offered:
                self._offer_callbacks(session, offered["sps_callbacks"].string_value)
            self._sessions[session_id] = session
            self._opened += 1
            count = len(self._sessions)
        glog("I", f"Session begins, protocol {version.protocol_version}; open: {count}")
        return session

    def close_session(self, session: Session) -> None:
        """Ends a session whose requests are all handled, and frees all that it held."""
        with self._lock:
            if self._sessions.pop(session.session_id, None) is not None:
                self._ended.merge(session.counts)
                self._callbacks_made += 0 if session.callbacks is None else session.callbacks.total
            for nonce, callbacks in list(self._callbacks.items()):
                if callbacks is session.callbacks:
                    del self._callbacks[nonce]
            directory = session.transfer_dir
            in_use = {other.transfer_dir for other in self._sessions.values()}
            if directory is not None and directory not in in_use:
                # Before another session of the same directory may open, and leave files there. (Its
                # client may remove it at the same time: what the session held goes anyway.)
                with contextlib.suppress(OSError):
                    remove_directory(directory)
        running = session.close()
        allocator.trim()
        glog("I", "Session ended")
        self._on_session_end(running)

    def callbacks_of(self, metadata: Mapping[str, Any]) -> SessionCallbacks:
        """Returns the callbacks of the client that opens a stream for them with these metadata."""
        self._check_authorization(str(metadata.get("authorization", "")).encode())
        found = self._callbacks.get(metadata.get("sps-callbacks-bin", b""))
        if found is None:
            raise StatusError(Code.NOT_FOUND, "no open session has named these sps_callbacks")
        return found

    def profile_stream(self, metadata: Mapping[str, Any]) -> ProfileStream:
        """Returns what serves the client that opens a stream for a profile with these metadata."""
        self._check_authorization(str(metadata.get("authorization", "")).encode())
        return ProfileStream(self._profiles)

    def _check_authorization(self, shown: bytes) -> None:
        if self._token is not None:
            check_token(shown, dict(bearer(self._token))["authorization"])

    def _offer_callbacks(self, session: Session, nonce: bytes) -> None:
        if len(nonce) != _NONCE_BYTES:
            raise invalid_argument(f"sps_callbacks has {len(nonce)} bytes, not {_NONCE_BYTES}")
        # A client whose first attempt failed names the same again.
        session.callbacks = self._callbacks[nonce] = SessionCallbacks(self.host_memory)

    def count_buffers(self) -> int:
        """Returns how many host buffers sessions hold, and how many are left as files to be read.

        A client looks up a buffer after its announcement, deletes it when it has it, and names a
        file that it has written: each stands for one possible call.
        """
        sessions = self.sessions
        directories = {session.transfer_dir for session in sessions} - {None}
        files = sum(count_files(directory) for directory in directories if directory is not None)
        return files + sum(len(session.buffers) for session in sessions)

    def store(self, metadata: Mapping[str, bytes], messages: Iterable[bytes]) -> None:
        """Receives a host buffer as a stream of messages."""
        header = parse(
            proxy_pb2.GrpcHostBufferStoreMetadata, metadata.get(ifrt.HOST_BUFFER_METADATA, b"")
        )
        session = self.session(header.session_id)
        try:
            buffer = buffer_streams.receive(session.buffers, header.buffer_size, messages)
        except StatusError as error:
            session.buffers.put(header.handle, error)
            if error.code != Code.RESOURCE_EXHAUSTED:
                raise
            # JAX's client ends its session if an upload fails: so instead, uses of the buffer fail.
            for _ in messages:
                pass
            return
        except Exception:  # whatever it is that gRPC raises when a stream is broken off
            text = "the upload of a host buffer was broken off"
            session.buffers.put(header.handle, StatusError(Code.CANCELLED, text))
            raise
        self._received.add(header.buffer_size)
        session.buffers.put(header.handle, buffer)

    def lookup(self, raw: bytes, waiting: buffer_streams.Waiting) -> Iterator[bytes]:
        """Sends a host buffer as a stream of messages."""
        request = parse(proxy_pb2.GrpcHostBufferLookupRequest, raw)
        session = self.session(request.session_id)
        buffer = buffer_streams.wait_for(session.buffers, request.handle, waiting)
        self._sent.add(len(buffer.data))
        yield from buffer_streams.send(buffer, self.host_memory)

    def delete(self, raw: bytes) -> bytes:
        """Removes a host buffer."""
        request = parse(proxy_pb2.GrpcHostBufferDeleteRequest, raw)
        self.session(request.session_id).buffers.take(request.handle)
        return b""

    def read_from_disk(self, raw: bytes) -> bytes:
        """Reads a host buffer that the client left in the shared directory."""
        header = parse(proxy_pb2.GrpcHostBufferReadFromDiskRequest, raw).metadata
        session = self.session(header.session_id)
        if session.transfer_dir is None:
            raise StatusError(
                Code.FAILED_PRECONDITION,
                "this session named no sps_transfer_dir, or the proxy has no --large_transfer_dir",
            )
        path = session.transfer_dir / f"lt_{header.handle}"
        buffer = _take(path, header.buffer_size, session.buffers)
        if isinstance(buffer, StatusError):
            session.buffers.put(header.handle, buffer)
            if buffer.code not in {Code.RESOURCE_EXHAUSTED, Code.NOT_FOUND}:
                raise buffer.copy()
            # As above. (A logout removes files, too.)
            path.unlink(missing_ok=True)
            return b""
        self._received.add(header.buffer_size)
        session.buffers.put(header.handle, buffer)
        return b""

    def get_counters(self, authorization: bytes) -> bytes:
        """Returns the proxy's counters, for a call with this metadata ``authorization``."""
        self._check_authorization(authorization)
        return self.counters().SerializeToString()

    def counters(self) -> proxy_status_pb2.GetCountersResponse:
        """Returns the proxy's counters; callable on any thread."""
        requests = RequestCounts()
        with self._lock:
            sessions = list(self._sessions.values())
            requests.merge(self._ended)
            opened = self._opened
            callbacks = self._callbacks_made
        for session in sessions:
            requests.merge(session.counts)
        found = families(
            self._engine,
            sessions,
            requests,
            sessions_opened=opened,
            callbacks_ended=callbacks,
            host_memory_bytes=self.host_memory.held,
            received=self._received,
            sent=self._sent,
        )
        return message_of([*found, *self._more_counters()])

    def work_done(self, passive: Container[str]) -> int:
        """Returns a number that grows with the clients' work, except `passive` requests."""
        with self._lock:
            counts = [self._ended, *(session.counts for session in self._sessions.values())]
        moved = self._received.buffers + self._sent.buffers
        return moved + sum(one.all_but(passive) for one in counts)


def _take(path: Path, size: int, store: BufferStore) -> HostBuffer | StatusError:
    """Reads a file as a host buffer; returns the error if that fails."""
    try:
        charge = buffer_streams.charge_for(store, size)
        return HostBuffer(take_file(path, size), charge)
    except Exception as error:  # noqa: BLE001 - whatever it is, uses of the buffer must fail
        # (The error refers to this frame, and so to the charge.)
        return from_exception(error).copy()
