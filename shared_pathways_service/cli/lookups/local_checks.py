"""Checks of this machine and of the embedded service, for `sps doctor`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import platform
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import grpc.aio

from shared_pathways_service import constants
from shared_pathways_service.api.checks import Check, Outcome, judge
from shared_pathways_service.cli.lookups.sessions import journal_entries
from shared_pathways_service.errors import (
    InvalidRequestError,
    ServiceNotReady,
    SharedPathwaysError,
    VersionSkew,
)
from shared_pathways_service.homes.embedded.discovery import ServiceLink, find
from shared_pathways_service.jax_client.plugin.plugin import INSECURE_VARIABLE
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.runtime import descriptors
from shared_pathways_service.runtime.settings import Settings, private_directory
from shared_pathways_service.version import __version__

__all__ = ["embedded_checks", "machine_checks"]

#: Bytes of free space below which logs and a journal may not fit.
_ROOM = 100 << 20


def machine_checks(settings: Settings) -> list[Check]:
    """Checks what every connection needs on this machine."""
    return [
        _versions_check(),
        judge("runtime directory", lambda: _private(settings.runtime_dir, "SPS_RUNTIME_DIR")),
        judge(
            "state directory",
            lambda: _private(settings.state_dir, "SPS_STATE_DIR"),
            warns=lambda: _short_of_room(settings),
        ),
        _journal_check(settings),
        judge("open files", _open_files, warns=_short_of_descriptors),
        _credentials_check(os.environ.get(INSECURE_VARIABLE)),
    ]


def _private(path: Path, field: str) -> str:
    return str(private_directory(path, field))


def _versions_check() -> Check:
    jax, jaxlib = importlib.metadata.version("jax"), importlib.metadata.version("jaxlib")
    found = (
        f"shared-pathways-service {__version__}, Python {platform.python_version()}, "
        f"jax {jax}, jaxlib {jaxlib}"
    )
    if jax.split(".")[:2] == jaxlib.split(".")[:2]:
        return Check(name="versions", outcome=Outcome.OK, found=found)
    fix = f"pip install jax=={jax} jaxlib=={jax}"
    return Check(name="versions", outcome=Outcome.WARNING, found=found, fix=fix)


def _short_of_room(settings: Settings) -> str:
    directory = private_directory(settings.state_dir, "SPS_STATE_DIR")
    free = shutil.disk_usage(directory).free
    return f"{directory} has {free >> 20} MiB left" if free < _ROOM else ""


def _open_files() -> str:
    descriptors.check_room()
    most = descriptors.limit()
    return f"at most {'any number' if most is None else most} (RLIMIT_NOFILE)"


def _short_of_descriptors() -> str:
    most = descriptors.limit()
    if most is None or most >= descriptors.NEEDED:
        return ""
    return (
        f"a program may have {most} files open (RLIMIT_NOFILE); `ulimit -n {descriptors.ADVISED}` "
        "leaves room for files and connections of its own"
    )


def _journal_check(settings: Settings) -> Check:
    entries = journal_entries(settings)
    abandoned = [entry.name for entry in entries if entry.abandoned]
    if abandoned:
        return Check(
            name="journal",
            outcome=Outcome.WARNING,
            found=f"dead programs left {', '.join(abandoned)} behind",
            fix="`sps reap` takes them down; so does the next connection",
        )
    found = f"{len(entries)} connections of yours, each with its agent or its program"
    return Check(name="journal", outcome=Outcome.OK, found=found)


def _credentials_check(value: str | None) -> Check:
    """Checks the variable by which JAX's client chooses gRPC credentials."""
    name = "credentials"
    if value is None:
        found = f"{INSECURE_VARIABLE} is not set: connect() and `sps run` set it for the client"
        return Check(name=name, outcome=Outcome.OK, found=found)
    found = f"{INSECURE_VARIABLE}={value}"
    if value == "true":
        return Check(name=name, outcome=Outcome.OK, found=f"{found}: plaintext, the default")
    meaning = (
        "a client uses ALTS, which exists only on machines of Google Cloud"
        if value == "false"
        else "JAX's client ignores any value but 'true', and the plug-in refuses it"
    )
    return Check(
        name=name,
        outcome=Outcome.WARNING,
        found=f"{found}: without connect() or `sps run`, which set it themselves, {meaning}",
        fix=f"unset {INSECURE_VARIABLE}; to use ALTS, pass "
        "--proxy_options=use_insecure_credentials:false",
    )


# ---- the embedded service


async def embedded_checks(
    settings: Settings, wanted: Sequence[str], within_s: float
) -> list[Check]:
    """Checks the embedded service of this user; that there is none is no failure.

    Args:
      settings: Where it is.
      wanted: Instance types that would be asked for, one a slice.
      within_s: Seconds for it to answer.
    """
    try:
        link = await find(settings)
    except SharedPathwaysError as error:
        return [Check.failed("service", error)]
    if link is None:
        found = f"none runs in {settings.runtime_dir}: connect() starts one"
        return [Check(name="service", outcome=Outcome.OK, found=found)]
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(link.close)
        state = link.state
        where = f"process {state.supervisor.pid} at {state.address}, since {state.since}"
        checks = [
            Check(name="service", outcome=Outcome.OK, found=where),
            judge("protocol", lambda: _common_protocol(link)),
            judge("instance types", lambda: _types(link, wanted)),
        ]
        try:
            status = await _ask(link, within_s)
        except SharedPathwaysError as error:
            return [*checks, Check.failed("resource manager", error)]
        found = f"process {status.pid} answers, and is {status.state or 'ready'}"
        checks.append(Check(name="resource manager", outcome=Outcome.OK, found=found))
        return [*checks, _slices_check(status, wanted)]


def _common_protocol(link: ServiceLink) -> str:
    state = link.state
    theirs = f"{state.protocol_min} to {state.protocol_max}"
    ours = f"{constants.PROTOCOL_MIN} to {constants.PROTOCOL_MAX}"
    if state.protocol_max < constants.PROTOCOL_MIN or state.protocol_min > constants.PROTOCOL_MAX:
        raise VersionSkew(
            f"the service speaks versions {theirs}, and this client {ours}",
            client=ours,
            service=theirs,
            hint="end the service when nobody uses it: the next one is of your version",
        )
    return f"versions {theirs} there, {ours} here"


def _types(link: ServiceLink, wanted: Sequence[str]) -> str:
    has = link.state.slices
    told = ", ".join(f"{count} x {kind}" for kind, count in has.items())
    for kind, count in Counter(wanted).items():
        if count > has.get(kind, 0):
            raise InvalidRequestError("--slices", f"{kind}={count}", f"no more than {told}")
    return told


async def _ask(link: ServiceLink, within_s: float) -> pb.GetStatusResponse:
    try:
        async with asyncio.timeout(within_s):
            return await link.resource_manager.GetStatus(
                pb.GetStatusRequest(), metadata=link.metadata, wait_for_ready=True
            )
    except TimeoutError as error:
        raise ServiceNotReady(
            f"the resource manager did not answer within {within_s:g} s",
            hint="`sps logs --component=rm` shows what it wrote last",
        ) from error
    except grpc.aio.AioRpcError as error:
        address = link.state.address
        raise error_of(error, service="the embedded service", address=address) from error


def _slices_check(status: pb.GetStatusResponse, wanted: Sequence[str]) -> Check:
    ready = [item for item in status.slices if item.state == "ready"]
    free = Counter(item.instance_type for item in ready if not item.tenant)
    have = f"{len(ready)} of {len(status.slices)} are ready, {free.total()} of them free"
    unready = [f"{item.id} is {item.state}" for item in status.slices if item.state != "ready"]
    if not ready:
        error = ServiceNotReady(
            f"no slice is ready: {'; '.join(unready)}",
            wanted=len(status.slices),
            pods=unready,
            hint="`sps logs --component=worker` shows what their workers wrote last",
        )
        return Check.failed("slices", error)
    if any(count > free[kind] for kind, count in Counter(wanted).items()) or not free:
        return Check(
            name="slices",
            outcome=Outcome.WARNING,
            found="; ".join([have, *unready]),
            fix="`sps status` shows who holds them; queue_timeout= waits for them",
        )
    outcome = Outcome.WARNING if unready else Outcome.OK
    return Check(name="slices", outcome=outcome, found="; ".join([have, *unready]))
