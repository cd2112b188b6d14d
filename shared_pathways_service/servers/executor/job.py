"""A command that an executor carries out, with what it uses and makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from shared_pathways_service.servers.executor.executor_engine import Client, Runner
from shared_pathways_service.servers.executor.held import Held

__all__ = ["Job"]


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A command."""

    number: int
    client: int
    kind: str
    body: Any
    #: Its client, and what its body names, in this order: program or runner, arrays.
    uses: Sequence[Held]
    makes: Sequence[Held]
    #: The bytes that came before it.
    data: Sequence[memoryview] = ()

    @property
    def opened(self) -> Client:
        """Its client, once that is settled; raises its error."""
        client: Client = self.uses[0].get()
        return client

    @property
    def can_run(self) -> bool:
        """Whether all that it uses is settled."""
        return all(held.is_settled for held in self.uses)

    @property
    def is_quick(self) -> bool:
        """Whether a program can run now, takes next to no time, and waits for no other host."""
        if not self.can_run:
            return False
        runner: Runner | None = self.uses[1].value
        return runner is not None and runner.is_quick and not runner.program.spans_hosts
