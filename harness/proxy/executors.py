"""Executors as processes, for a proxy that computes on them."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence

from harness.processes import ServerProcess

__all__ = ["RunningExecutors", "running_executors"]

_EXECUTOR = "shared_pathways_service.servers.executor"
_WITH_STAND_INS = "harness.proxy.accelerators"


@dataclasses.dataclass(frozen=True)
class RunningExecutors:
    """Executors that serve until their proxy ends."""

    processes: Sequence[ServerProcess]
    addresses: Sequence[str]
    token: str
    token_file: str

    @property
    def proxys_flags(self) -> tuple[str, ...]:
        """The flags of a proxy that computes on them."""
        return (
            "--engine=distributed",
            f"--executors={','.join(self.addresses)}",
            f"--executor_token_file={self.token_file}",
        )


@contextlib.contextmanager
def running_executors(
    *flags_of_each: Sequence[str], platform: str = "cpu", stand_ins: bool = True
) -> Iterator[RunningExecutors]:
    """Runs an executor with each of these flags, and kills those that are left.

    Accelerators are stand-ins, unless `stand_ins` is false.
    """
    module = _WITH_STAND_INS if stand_ins and platform != "cpu" else _EXECUTOR
    with contextlib.ExitStack() as stack:
        token_file = stack.enter_context(tempfile.NamedTemporaryFile("w"))
        token_file.write("a-token")
        token_file.flush()
        processes = [
            stack.enter_context(
                ServerProcess(
                    module, [*flags, f"--platform={platform}", f"--token_file={token_file.name}"]
                )
            )
            for flags in flags_of_each
        ]
        ports = [(process.ready or {})["port"] for process in processes]
        yield RunningExecutors(
            processes, [f"127.0.0.1:{port}" for port in ports], "a-token", token_file.name
        )
