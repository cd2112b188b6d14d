"""What a proxy asks of every compiled program, as a message."""

from __future__ import annotations

from collections.abc import Callable

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.interface import Executable

__all__ = ["facts_of"]


def facts_of(executable: Executable) -> pb.ProgramFacts:
    """Returns the facts of a compiled program."""
    found = pb.ProgramFacts(
        name=executable.name,
        fingerprint=executable.fingerprint,
        memory=executable.memory.SerializeToString(),
        code_bytes=executable.code_bytes,
        aliased=sorted(executable.aliased_parameters()),
        parameter_layouts=_layouts(executable.parameter_layouts),
        result_layouts=_layouts(executable.result_layouts),
    )
    (kinds,) = executable.result_memory_kinds() or ([],)
    found.result_memory_kinds.extend(kinds)
    for field, shardings in (
        (found.parameters, executable.parameter_shardings()),
        (found.results, executable.result_shardings()),
    ):
        if shardings is not None:
            field.SetInParent()
            field.shardings.extend(shardings)
    return found


def _layouts(get: Callable[[], list[str]]) -> pb.Layouts:
    try:
        return pb.Layouts(layouts=get())
    except Exception as error:  # noqa: BLE001 - XLA's, for tokens; raised again in the proxy
        return pb.Layouts(error=str(error) or type(error).__name__)
