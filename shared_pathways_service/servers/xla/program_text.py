"""Checks a program's text before MLIR's recursive parser reads it, which may overflow its stack.

Programs in MLIR's bytecode, as JAX sends them, have no text to check.
"""

from __future__ import annotations

import re

import numpy as np

from shared_pathways_service.servers.devices.status_errors import StatusError, invalid_argument

__all__ = ["check_text"]

_BYTECODE = b"ML\xefR"
#: The deepest nesting of brackets; the parser survives some 5000. JAX writes a few dozen.
_DEEPEST = 400
#: Names for attributes and types, each of which may nest as deep; JAX names locations only.
_MOST_ALIASES = 8
_NOT_CODE = re.compile(rb'"(?:[^"\\]|\\.)*"|//[^\n]*', re.DOTALL)
#: Tokens with brackets that nest nothing.
_NOT_NESTING = re.compile(rb"->|>=")
#: StableHLO's custom calls: the verifier assumes that a call with aliases has results.
_ALIASES, _NO_RESULTS = b"output_operand_alias", re.compile(rb"->\s*\(\s*\)")
#: What the parser recurses for without brackets: `- - - d0` and `d0 + d0 + d0`.
_AFFINE = re.compile(rb"\baffine_(?:map|set)\b")
_ALIAS = re.compile(rb"[#!][\w$.-]+\s*=(?!=)")
_LOCATION = re.compile(rb"#loc\d*\s*=\s*loc\(")
_OPENING, _CLOSING = b"([{<", b")]}>"
_OTHERS = bytes(byte for byte in range(256) if byte not in _OPENING + _CLOSING)
_STEPS = np.array([1 if byte in _OPENING else -1 for byte in range(256)], np.int8)


def check_text(program: bytes, *, verified: bool = False) -> None:
    """Refuses a text with which MLIR's parser would crash; accepts all bytecode.

    `verified` is for text that MLIR itself has written.
    """
    if program.startswith(_BYTECODE):
        return
    text = _NOT_CODE.sub(b" ", program)
    nesting = _NOT_NESTING.sub(b" ", text)
    brackets = np.frombuffer(nesting.translate(None, _OTHERS), np.uint8)
    depth = int(np.cumsum(_STEPS[brackets], dtype=np.int64).max(initial=0))
    if depth > _DEEPEST:
        raise _wrong(f"has brackets {depth} deep: at most {_DEEPEST} are allowed")
    if found := _AFFINE.search(text):
        raise _wrong(f"has {found[0].decode()}, which programs of StableHLO do not have")
    locations = len(_LOCATION.findall(text))
    aliases = len(_ALIAS.findall(text)) - locations
    if aliases > _MOST_ALIASES:
        raise _wrong(f"names {aliases} attributes and types: at most {_MOST_ALIASES} are allowed")
    if not verified and _ALIASES in text and _NO_RESULTS.search(text):
        raise _wrong(f"has {_ALIASES.decode()}, and operations without results: send bytecode")


def _wrong(what: str) -> StatusError:
    return invalid_argument(f"a program as text {what}")
