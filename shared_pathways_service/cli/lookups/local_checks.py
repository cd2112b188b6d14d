"""Checks this machine and the embedded service for `sps doctor`."""

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

#: Bytes of free space that logs and the journal need.
_MIN_SPACE = 100 << 20


def machine_checks(settings: Settings) -> list[Check]:
    """Checks the requirements of every connection on this machine."""
    return [
        _versions_check(),
        judge("runtime directory", lambda: _private(settings.runtime_dir, "SPS_RUNTIME_DIR")),
        judge(
            "state directory",
            lambda: _private(settings.state_dir, "SPS_STATE_DIR"),
            warns=lambda: _low_on_space(settings),
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


def _low_on_space(settings: Settings) -> str:
    directory = private_directory(settings.state_dir, "SPS_STATE_DIR")
    free = shutil.disk_usage(directory).free
    return f"{directory} has {free >> 20} MiB left" if free < _MIN_SPACE else ""


def _open_files() -> str:
    descriptors.check_room()
    most = descriptors.limit()
    return "no limit" if most is None else f"at most {most} (RLIMIT_NOFILE)"


def _short_of_descriptors() -> str:
    most = descriptors.limit()
    if most is None or most >= descriptors.NEEDED:
        return ""
    return (
        f"a program may have only {most} files open (RLIMIT_NOFILE); run `ulimit -n "
        f"{descriptors.ADVISED}` to leave room for its own files and connections"
    )


def _journal_check(settings: Settings) -> Check:
    entries = journal_entries(settings)
    abandoned = [entry.name for entry in entries if entry.abandoned]
    if abandoned:
        return Check(
            name="journal",
            outcome=Outcome.WARNING,
            found=f"dead programs left {', '.join(abandoned)} behind",
            fix="`sps reap` deletes them, and so does the next connection",
        )
    found = f"{len(entries)} connections of yours, all with a running agent or program"
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
        "--proxy-options=use_insecure_credentials:false",
    )


# ---- the embedded service


async def embedded_checks(
    settings: Settings, wanted: Sequence[str], within_s: float
) -> list[Check]:
    """Checks the embedded service of this user; that none runs is not a failure.

    Args:
      settings: The directories of the service.
      wanted: Instance types of a request, one per slice.
      within_s: Seconds for an answer.
    """
    try:
        link = await find(settings)
    except SharedPathwaysError as error:
        return [Check.failed("service", error)]
    if link is None:
        found = f"no service runs in {settings.runtime_dir}; connect() starts one"
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
            status = await _read_status(link, within_s)
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
            f"the service supports versions {theirs}, and this client {ours}",
            client=ours,
            service=theirs,
            hint="end the service when it is not in use; the next one has your version",
        )
    return f"the service supports versions {theirs}, this client {ours}"


def _types(link: ServiceLink, wanted: Sequence[str]) -> str:
    has = link.state.slices
    counts = ", ".join(f"{count} x {kind}" for kind, count in has.items())
    for kind, count in Counter(wanted).items():
        if count > has.get(kind, 0):
            raise InvalidRequestError("--slices", f"{kind}={count}", f"no more than {counts}")
    return counts


async def _read_status(link: ServiceLink, within_s: float) -> pb.GetStatusResponse:
    try:
        async with asyncio.timeout(within_s):
            return await link.resource_manager.GetStatus(
                pb.GetStatusRequest(), metadata=link.metadata, wait_for_ready=True
            )
    except TimeoutError as error:
        raise ServiceNotReady(
            f"the resource manager did not answer within {within_s:g} s",
            hint="`sps logs --component=rm` shows its last log lines",
        ) from error
    except grpc.aio.AioRpcError as error:
        address = link.state.address
        raise error_of(error, service="the embedded service", address=address) from error


def _slices_check(status: pb.GetStatusResponse, wanted: Sequence[str]) -> Check:
    ready = [item for item in status.slices if item.state == "ready"]
    free = Counter(item.instance_type for item in ready if not item.tenant)
    have = f"{len(ready)} of {len(status.slices)} slices are ready, {free.total()} of them free"
    unready = [f"{item.id} is {item.state}" for item in status.slices if item.state != "ready"]
    if not ready:
        error = ServiceNotReady(
            f"no slice is ready: {'; '.join(unready)}",
            wanted=len(status.slices),
            pods=unready,
            hint="`sps logs --component=worker` shows the last log lines of their workers",
        )
        return Check.failed("slices", error)
    if any(count > free[kind] for kind, count in Counter(wanted).items()) or not free:
        return Check(
            name="slices",
            outcome=Outcome.WARNING,
            found="; ".join([have, *unready]),
            fix="`sps status` shows the holders; queue_timeout= waits for slices",
        )
    outcome = Outcome.WARNING if unready else Outcome.OK
    return Check(name="slices", outcome=outcome, found="; ".join([have, *unready]))
