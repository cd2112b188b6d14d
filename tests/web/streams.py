"""Reads the stream of a page, with one deadline for all of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from harness.processes import DEADLINE_S

__all__ = ["rows_until"]

Rows = dict[str, dict[str, Any]]


def rows_until(url: str, headers: Mapping[str, str], wanted: Callable[[Rows], object]) -> Rows:
    """Returns the rows of a page by kind and key once `wanted` of them is true.

    Args:
      url: The address of the stream.
      headers: Headers of the request.
      wanted: Judges the rows after each event.
    """
    rows: Rows = {}
    try:
        asyncio.run(_follow(url, headers, rows, wanted))
    except TimeoutError as error:
        raise AssertionError(f"what is wanted is not in {rows}") from error
    return rows


async def _follow(
    url: str, headers: Mapping[str, str], rows: Rows, wanted: Callable[[Rows], object]
) -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        aiohttp.ClientSession(headers=headers) as client,
        client.get(url) as answer,
    ):
        answer.raise_for_status()
        event = ""
        async for line in answer.content:
            name, _, text = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                event = text
            elif name == "data" and text:
                _apply(rows, event, json.loads(text))
                if wanted(rows):
                    return
    raise AssertionError(f"the stream ended with {rows}")


def _apply(rows: Rows, event: str, data: Mapping[str, Any]) -> None:
    if event == "state":
        rows.clear()
        rows.update(data)
        return
    for name, change in data.items():
        found = rows.setdefault(name, {})
        found.update(change["set"])
        for key in change["gone"]:
            del found[key]
