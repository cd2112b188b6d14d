"""The stream of one profile: its requests and replies, as `profiles.proto` describes them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from google.protobuf.message import DecodeError

from shared_pathways_service.protocol import profiles_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.memory import HostCharge
from shared_pathways_service.servers.proxy.profiles.clocks import Offset, Sample, offset_of
from shared_pathways_service.servers.proxy.profiles.profile_run import Profile
from shared_pathways_service.servers.proxy.profiles.profiles import Profiles
from shared_pathways_service.servers.proxy.profiles.recorded_process import Levels

__all__ = ["ProfileStream"]

#: Bytes of a file in one message, and the most samples of a client's clock.
_PART = 1 << 20
_MOST_SAMPLES = 1024
#: The highest level of XLA's tracers.
_HIGHEST_LEVEL = 3


class Outbox(Protocol):
    """Takes messages to the client; never blocks."""

    def put(self, message: bytes, charge: HostCharge | None) -> None:
        """Sends a message; holds `charge` until it is sent."""


class ProfileStream:
    """One client's stream, which has at most one profile. For one thread."""

    def __init__(self, profiles: Profiles) -> None:
        self._profiles = profiles
        self._profile: Profile | None = None
        self._outbox: Outbox | None = None
        self._is_over = False

    @contextlib.contextmanager
    def attached(self, outbox: Outbox) -> Iterator[None]:
        """Replies on a stream; the profile ends with the block."""
        self._outbox = outbox
        try:
            yield
        finally:
            if self._profile is not None:
                self._profile.drop()

    def receive(self, raw: bytes) -> None:
        """Handles a request; an error is a reply, after which the others are ignored."""
        if self._is_over:
            return
        try:
            self._handle(raw)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client receives it
            self._is_over = True
            failure = from_exception(error)
            failed = pb.ProfileFailure(code=failure.code.value, message=failure.message)
            self._reply(pb.ProfileReply(failed=failed))

    def _handle(self, raw: bytes) -> None:
        try:
            message = pb.ProfileRequest.FromString(raw)
        except DecodeError as error:
            raise invalid_argument(f"not a ProfileRequest: {error}") from error
        kind = message.WhichOneof("request")
        if kind == "clock":
            self._reply(pb.ProfileReply(clock=_clock()))
        elif kind == "start":
            self._start(message.start)
        elif kind == "stop":
            self._begun().finish()
            self._reply(pb.ProfileReply(stopped=_clock()))
        elif kind == "collect":
            self._collect(message.collect)
        else:
            raise invalid_argument("a ProfileRequest that is not known here")

    def _begun(self) -> Profile:
        if self._profile is None:
            raise StatusError(Code.FAILED_PRECONDITION, "this stream has not started a profile")
        return self._profile

    def _start(self, request: pb.StartProfile) -> None:
        if self._profile is not None:
            raise StatusError(Code.FAILED_PRECONDITION, "this stream has started its profile")
        for name in ("host_tracer_level", "python_tracer_level"):
            if getattr(request, name) > _HIGHEST_LEVEL:
                value = getattr(request, name)
                raise invalid_argument(f"{name} is {value}, not 0 to {_HIGHEST_LEVEL}")
        levels = Levels(request.host_tracer_level, request.python_tracer_level)
        self._profile = self._profiles.begin(levels)
        started = _clock()
        started.most_ms = self._profiles.most_s * 1000
        self._reply(pb.ProfileReply(started=started))

    def _collect(self, request: pb.CollectProfile) -> None:
        profile = self._begun()
        if len(request.samples) > _MOST_SAMPLES:
            raise invalid_argument(f"{len(request.samples)} samples, not up to {_MOST_SAMPLES}")
        samples = [Sample(one.sent_ns, one.remote_ns, one.received_ns) for one in request.samples]
        profile.finish()
        client = offset_of(samples) if samples else Offset()
        for file in profile.files(request.began_ns, client):
            for begin in range(0, len(file.data), _PART):
                part = pb.ProfilePart(file=file.name, data=file.data[begin : begin + _PART])
                # (The file's memory is charged until its last part is sent.)
                self._reply(pb.ProfileReply(part=part), file.charge)
        self._is_over = True
        self._reply(pb.ProfileReply(done=pb.ProfileDone(notes=profile.notes)))

    def _reply(self, reply: pb.ProfileReply, charge: HostCharge | None = None) -> None:
        assert self._outbox is not None, "messages are received while it is attached"
        self._outbox.put(reply.SerializeToString(), charge)


def _clock() -> pb.ProfileClock:
    return pb.ProfileClock(clock_ns=time.time_ns())
