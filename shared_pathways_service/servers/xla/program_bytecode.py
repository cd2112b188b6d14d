"""Checks a program in MLIR's bytecode before StableHLO's verifier reads it.

The verifier assumes that a custom call whose results share memory with operands has results, and
crashes otherwise. It runs whenever MLIR reads StableHLO, and cannot be disabled. But JAX sends
portable artifacts, whose operations are of VHLO, StableHLO's versioned form: those can be read and
checked before they become StableHLO's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

from shared_pathways_service.servers.devices.status_errors import StatusError, invalid_argument

__all__ = ["check_bytecode"]

_BYTECODE = b"ML\xefR"
_CALL = "vhlo.custom_call"
_ALIASES, _NO_ALIASES = "output_operand_aliases", "#vhlo.array_v1<[]>"
#: How bytecode names an operation: as dialect and name, or as one string.
_DIALECT, _NAME = b"stablehlo", b"custom_call"
_WHOLE = b"stablehlo.custom_call"
_STRINGS = 0
#: In the number of a section: whether an alignment follows its length.
_IS_ALIGNED = 0x80


def check_bytecode(program: bytes) -> None:
    """Refuses bytecode with which StableHLO's verifier may crash; accepts all texts.

    MLIR's context must be entered.
    """
    if not program.startswith(_BYTECODE) or _NAME not in program:
        return
    if _DIALECT in program:
        strings = set(_strings(program))
        if {_DIALECT, _NAME} <= strings or _WHOLE in strings:
            raise _wrong("has custom calls, but is not a portable artifact of StableHLO")
    try:
        module = ir.Module.parse(program)
    except Exception:  # noqa: BLE001 - its type is jaxlib's; its next reader reports what is wrong
        return
    wrong = False

    def look(operation: Any) -> Any:
        nonlocal wrong
        wrong = operation.name.startswith(_CALL) and _has_aliases_only(operation)
        return ir.WalkResult.INTERRUPT if wrong else ir.WalkResult.ADVANCE

    module.operation.walk(look)
    if wrong:
        raise _wrong(f"has a custom call with {_ALIASES}, but without results")


def _has_aliases_only(operation: Any) -> bool:
    if len(operation.results) or _ALIASES not in operation.attributes:
        return False
    return str(operation.attributes[_ALIASES]) != _NO_ALIASES


def _strings(program: bytes) -> Iterator[bytes]:
    """Yields the strings of a program, with the names of its dialects and operations."""
    try:
        _, offset = _number(program, len(_BYTECODE))
        offset = program.index(b"\0", offset) + 1  # after the producer's name
        while offset < len(program):
            section = program[offset]
            size, offset = _number(program, offset + 1)
            if section & _IS_ALIGNED:
                alignment, offset = _number(program, offset)
                offset += -offset % alignment
            if section & ~_IS_ALIGNED == _STRINGS:
                yield from _strings_of(program[offset : offset + size])
            offset += size
    except (IndexError, ValueError, ZeroDivisionError) as error:
        raise _wrong(f"is incomplete: {error}") from error


def _strings_of(section: bytes) -> Iterator[bytes]:
    """Yields the strings of a section, which has their number, reversed sizes, and bytes."""
    count, offset = _number(section, 0)
    end = len(section)
    for _ in range(count):
        size, offset = _number(section, offset)
        # (A size includes a byte of zero, whose value MLIR ignores.)
        yield section[max(end - size, 0) : max(end - 1, 0)]
        end -= size


def _number(data: bytes, offset: int) -> tuple[int, int]:
    """Reads a number of variable length; returns it, and the offset after it."""
    first = data[offset]
    if not first:
        return int.from_bytes(data[offset + 1 : offset + 9], "little"), offset + 9
    # As many zeros as there are more bytes, then a one.
    length = (first & -first).bit_length()
    value = int.from_bytes(data[offset : offset + length], "little")
    return value >> length, offset + length


def _wrong(what: str) -> StatusError:
    return invalid_argument(f"a program as bytecode {what}")
