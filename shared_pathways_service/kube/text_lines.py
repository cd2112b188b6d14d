"""Splits an answer that comes in chunks into lines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

__all__ = ["lines_of"]

#: Bytes of a line that are kept.
_LINE_BYTES = 1 << 16


async def lines_of(chunks: AsyncIterable[bytes]) -> AsyncGenerator[str, None]:
    """Yields each line as it is complete, and at the end the rest; cut after 64 KiB."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield _text(line)
        rest = rest[: _LINE_BYTES + 1]
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return line[:_LINE_BYTES].removesuffix(b"\r").decode(errors="replace")
