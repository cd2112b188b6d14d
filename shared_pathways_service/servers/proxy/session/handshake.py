"""Checks what a client sends when it opens a session, and agrees on a version."""

from __future__ import annotations

import hmac
import re
from pathlib import Path
from typing import TypeVar

import jaxlib.version
from google.protobuf.message import DecodeError, Message

from shared_pathways_service.api.jax_releases import newest_served
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)

__all__ = ["check_token", "common_version", "compare_jaxlib", "parse", "transfer_dir"]

#: The size of a message with a few numbers and names, which may come from anybody.
_LARGEST_NUMBERS = 64 << 10
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

M = TypeVar("M", bound=Message)


def parse(kind: type[M], raw: bytes) -> M:
    """Parses a message that accompanies a session's requests."""
    name = kind.DESCRIPTOR.name
    if len(raw) > _LARGEST_NUMBERS:
        raise invalid_argument(f"a {name} of {len(raw)} bytes")
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise invalid_argument(f"not a {name}: {error}") from error


def check_token(shown: bytes, due: str) -> None:
    """Refuses a client without the tenant's token."""
    if not shown:
        raise StatusError(Code.UNAUTHENTICATED, "this proxy requires its tenant's token")
    if not hmac.compare_digest(shown, due.encode()):
        raise StatusError(Code.PERMISSION_DENIED, "the token is not this tenant's")


def compare_jaxlib(client: bytes) -> None:
    """Logs the version of a client of another release."""
    server = jaxlib.version.__version__
    if client.decode(errors="replace") != server:
        glog("W", f"The client has jaxlib {client.decode(errors='replace')}, this proxy {server}")


def common_version(
    oldest: proxy_pb2.IfrtProxyVersion, newest: proxy_pb2.IfrtProxyVersion, newest_here: int
) -> proxy_pb2.IfrtProxyVersion:
    """Returns the newest version that both sides support, or raises FAILED_PRECONDITION."""
    protocol = min(newest.protocol_version, newest_here)
    served = newest_served(jaxlib.version.__version__)
    serdes = min(newest.ifrt_serdes_version_number, served)
    too_new = served < min(newest.ifrt_serdes_version_number, ifrt.SERDES_MAX)
    if (
        protocol < max(oldest.protocol_version, ifrt.PROTOCOL_MIN)
        or serdes < max(oldest.ifrt_serdes_version_number, ifrt.SERDES_MIN)
        or too_new
    ):
        raise StatusError(
            Code.FAILED_PRECONDITION,
            f"no common version: the client supports protocol {oldest.protocol_version} to "
            f"{newest.protocol_version} and serdes {oldest.ifrt_serdes_version_number} to "
            f"{newest.ifrt_serdes_version_number}; this proxy supports "
            f"protocol {ifrt.PROTOCOL_MIN} to {newest_here} and serdes "
            f"{ifrt.SERDES_MIN} to {served}",
        )
    return proxy_pb2.IfrtProxyVersion(protocol_version=protocol, ifrt_serdes_version_number=serdes)


def transfer_dir(parent: Path | None, name: bytes) -> Path | None:
    """Returns a session's directory for large buffers; None if it named none or has no parent."""
    if parent is None or not name:
        return None
    text = name.decode(errors="replace")
    path = parent / text
    # A plain name, and no link that leads elsewhere.
    if not _PLAIN_NAME.fullmatch(text) or path.is_symlink():
        raise invalid_argument(f"sps_transfer_dir {text!r} is not a directory of this proxy")
    try:
        # The client made it; a client that retries finds it gone with its first session.
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise invalid_argument(f"sps_transfer_dir {text!r} cannot be created: {error}") from error
    return path
