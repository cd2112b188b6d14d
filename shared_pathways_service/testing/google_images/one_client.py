"""A proxy's service for one client, without this project's extensions."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import jaxlib.version

from shared_pathways_service.api.jax_releases import OUR_SERDES, service_serdes
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.engine.engine import Engine
from shared_pathways_service.servers.proxy.memory import Charge, DeviceMemory
from shared_pathways_service.servers.proxy.session.answers import Answers
from shared_pathways_service.servers.proxy.session.service import ProxyService
from shared_pathways_service.servers.proxy.session.session import Session
from shared_pathways_service.testing.google_images.log_texts import GUESSED

__all__ = ["OneClientService"]

_OURS = "sps_"


class OneClientService(ProxyService):
    """Cancels the session of a second client; it must be limited to one session.

    It ends if the devices' memory is full.
    """

    def __init__(self, engine: Engine, **more: Any) -> None:
        super().__init__(engine, **more)
        _end_if_full(engine.memory)

    def open_session(self, metadata: Mapping[str, bytes], answers: Answers) -> Session:
        """Begins a session; ignores metadata of this project's clients."""
        try:
            return super().open_session(_without_ours(metadata), answers)
        except StatusError as error:
            if error.code == Code.RESOURCE_EXHAUSTED and self.sessions:
                # The whole text of Google's page: gRPC's own for a call that a server cancels.
                raise StatusError(Code.CANCELLED, "Cancelled") from None
            raise

    def get_version(self, raw: bytes) -> bytes:
        """Agrees on a version with a client, or refuses as `ifrt_proxy/server/version.cc` does."""
        request = proxy_pb2.GrpcGetVersionRequest.FromString(raw)
        oldest, newest = request.min_version, request.max_version
        _check_versions(
            (oldest.protocol_version, newest.protocol_version),
            (ifrt.PROTOCOL_MIN, ifrt.PROTOCOL_MAX),
        )
        _check_versions(
            (oldest.ifrt_serdes_version_number, newest.ifrt_serdes_version_number),
            service_serdes(jaxlib.version.__version__, ours=False) or OUR_SERDES,
        )
        return super().get_version(raw)

    def get_counters(self, authorization: bytes) -> bytes:  # noqa: ARG002
        """Refuses this project's own call."""
        raise StatusError(Code.UNIMPLEMENTED, "")


def _check_versions(client: tuple[int, int], server: tuple[int, int]) -> None:
    if max(client[0], server[0]) > min(client[1], server[1]):
        raise StatusError(
            Code.INVALID_ARGUMENT,
            "IFRT Proxy client and server failed to agree on the protocol version; supported "
            f"versions: client = {[*client]}, server = {[*server]}",
        )


def _without_ours(metadata: Mapping[str, bytes]) -> Mapping[str, bytes]:
    message = proxy_pb2.GrpcIfrtSessionMetadata()
    message.ParseFromString(metadata.get(ifrt.SESSION_METADATA, b""))
    attributes = message.initialization_data.attributes
    for name in [name for name in attributes if name.startswith(_OURS)]:
        del attributes[name]
    return {**metadata, ifrt.SESSION_METADATA: message.SerializeToString()}


def _end_if_full(memory: DeviceMemory) -> None:
    """Makes a full memory end the first process of the container."""
    charge = memory.charge

    def charge_or_end(device_ids: Sequence[int], nbytes: int, what: str) -> Charge | None:
        try:
            return charge(device_ids, nbytes, what)
        except StatusError as error:
            glog("E", GUESSED["memory is exhausted"].text.format(reason=error.message))
            os.kill(os.getppid(), signal.SIGTERM)
            raise

    vars(memory)["charge"] = charge_or_end
