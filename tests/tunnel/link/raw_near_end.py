"""A near end made by hand, which may do what ours never does."""

from __future__ import annotations

import asyncio
import secrets
from typing import Self

from shared_pathways_service.tunnel.link.token_handshake import (
    ANSWER_BYTES,
    GREETING_BYTES,
    ID_BYTES,
    Greeting,
    Hello,
    Result,
    check_answer,
    hello,
)
from tests.tunnel.link.rigs import TOKEN

__all__ = ["RawNearEnd"]


class RawNearEnd:
    """One carrier; use `open`, and close the writer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.result: Result | None = None

    @classmethod
    async def open(cls, port: int, *, session: bytes | None = None, is_new: bool = True) -> Self:
        """Dials, and shakes hands."""
        one = cls(*await asyncio.open_connection("127.0.0.1", port))
        greeting = Greeting.decode(await one.reader.readexactly(GREETING_BYTES))
        name = session or secrets.token_bytes(ID_BYTES)
        mine = Hello(name, is_new, secrets.token_bytes(ID_BYTES))
        one.writer.write(hello(TOKEN, greeting, mine))
        answer = await one.reader.readexactly(ANSWER_BYTES)
        one.result = check_answer(TOKEN, greeting, mine, answer)
        return one
