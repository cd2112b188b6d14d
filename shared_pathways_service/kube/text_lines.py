"""Splits a chunked answer into lines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

__all__ = ["lines_of"]

#: The longest line in bytes; the rest of a line is dropped.
_LINE_BYTES = 1 << 16


async def lines_of(chunks: AsyncIterable[bytes]) -> AsyncGenerator[str, None]:
    """Yields each line when it is complete, and at the end the rest; cuts lines at 64 KiB."""
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
