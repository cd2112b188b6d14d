"""Lines of executors in the log of their worker: a tag names the tenant, the host, the generation.

A worker writes what its executors write, so that it cannot be taken for lines of another tenant's.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time

from shared_pathways_service.events import rfc3339

__all__ = ["ExecutorTag", "message_of", "read_tagged"]

_KEY = "executor"
_TAG = re.compile(
    r"\[executor (?P<tenant>\S+) (?P<slice>\S+)/(?P<host>\d+) g(?P<generation>\d+)\] ?"
)
_GLOG = re.compile(r"[IWEF]\d{4} \S+ +\d+ \S+\] ")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutorTag:
    """Whose line it is.

    Attributes:
      tenant: The tenant's name.
      slice_id: The physical slice.
      host: The index of the host in the slice.
      generation: The generation of the placement.
    """

    tenant: str
    slice_id: str
    host: int
    generation: int

    def __str__(self) -> str:
        return f"[executor {self.tenant} {self.slice_id}/{self.host} g{self.generation}]"

    def line(self, text: str, *, is_json: bool = False) -> str:
        """Returns a tagged line of a log, without a newline.

        Args:
          text: What an executor wrote.
          is_json: Whether the log has one object per line.
        """
        if not is_json:
            return f"{self} {text}"
        return json.dumps({**_object(text), _KEY: str(self)}, ensure_ascii=False)


def read_tagged(line: str) -> tuple[ExecutorTag, str] | None:
    """Returns the tag of a line, and the executor's text; None if it is not of an executor."""
    found = _TAG.match(line)
    text = line if found is None else line[found.end() :]
    if found is None and line.startswith("{"):
        found = _TAG.fullmatch(str(_read(line).get(_KEY)))
    if found is None:
        return None
    tag = ExecutorTag(
        tenant=found["tenant"],
        slice_id=found["slice"],
        host=int(found["host"]),
        generation=int(found["generation"]),
    )
    return tag, text


def message_of(line: str) -> str:
    """Returns the message of a line of a log, in glog's form or JSON; or the line if it has none.

    It may have several lines.
    """
    message = _read(line).get("message") if line.startswith("{") else None
    return message if isinstance(message, str) else _GLOG.sub("", line, count=1)


def _object(text: str) -> dict[str, object]:
    """Returns the object of a line of JSON, or one with the text as its message."""
    found = _read(text) if text.startswith("{") else {}
    return found or {"severity": "INFO", "time": rfc3339(time.time()), "message": text}


def _read(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
