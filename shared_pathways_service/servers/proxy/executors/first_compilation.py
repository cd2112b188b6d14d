"""Compiles a program on executors, or describes it while some of them are lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.interface import Executable
from shared_pathways_service.servers.devices.program_facts import facts_of
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink
from shared_pathways_service.servers.proxy.executors.executor_programs import (
    Client,
    KnownProgram,
    RemoteExecutable,
)

__all__ = ["compiled"]

#: The most bytes of a program that this process compiles: one that looks which slices are lost is
#: far smaller, and a large one would keep this process from other work.
_MOST_BYTES = 64 << 10


def compiled(
    client: Client,
    body: pb.CompileProgram,
    link_of: Callable[[], Mapping[int, ExecutorLink]],
    compile_here: Callable[[], Executable] | None,
) -> RemoteExecutable:
    """Returns a program that executors have compiled.

    If one is lost, a small program is described by what this process compiles. Then its runs fail,
    and not its compilation, as in a proxy that computes by itself: programs that look which slices
    are lost, such as those of pathwaysutils, rely on that. Later executors compile it when it runs.

    Args:
      client: The client that it belongs to.
      body: The command that compiles it, without a number.
      link_of: Returns the executor of each device now.
      compile_here: Compiles it in this process; None: that says nothing about executors.
    """
    try:
        return RemoteExecutable(client, body)
    except StatusError as error:
        if error.code is not Code.DATA_LOSS or compile_here is None:
            raise
        links = [link_of().get(i) for i in body.devices]
        # (The number of executors of a slice is not known before they have come.)
        if None in links or len(body.text) > _MOST_BYTES:
            raise
    return RemoteExecutable(client, body, KnownProgram(facts_of(compile_here()), len({*links})))
