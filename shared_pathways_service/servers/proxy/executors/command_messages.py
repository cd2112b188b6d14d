"""The bytes of messages of commands, made of those of each command."""

from __future__ import annotations

from collections.abc import Sequence

from shared_pathways_service.protocol import executors_pb2 as pb

__all__ = ["Freed", "framed", "joined", "size_of"]

#: What a finalizer frees: the field of `Free`, and the number; and about its size.
Freed = tuple[str, int]
_FREED_BYTES = 8
#: What a message of one command begins with, before the command's size.
_TAG = (pb.ExecutorCommands.COMMANDS_FIELD_NUMBER << 3) | 2
#: A size below this has one byte.
_ONE_BYTE = 0x80


def size_of(item: bytes | Freed) -> int:
    """Returns about the bytes of an item in a message."""
    return len(item) if isinstance(item, bytes) else _FREED_BYTES


def framed(command: pb.ExecutorCommand) -> bytes:
    """Returns a message of one command. Such bytes, joined, are a message of all of them."""
    data = command.SerializeToString()
    if len(data) < _ONE_BYTE:
        # (As protobuf does, in a third of the time: most commands are small.)
        return bytes((_TAG, len(data))) + data
    return pb.ExecutorCommands(commands=[command]).SerializeToString()


def joined(items: Sequence[bytes | Freed]) -> bytes:
    """Returns a message of commands; those that free what comes next to each other are one."""
    parts: list[bytes] = []
    freed: pb.ExecutorCommand | None = None
    for item in items:
        if isinstance(item, bytes):
            if freed is not None:
                parts.append(framed(freed))
                freed = None
            parts.append(item)
            continue
        if freed is None:
            freed = pb.ExecutorCommand()
        kind, number = item
        getattr(freed.free, kind).append(number)
    if freed is not None:
        parts.append(framed(freed))
    return parts[0] if len(parts) == 1 else b"".join(parts)
