"""FFI targets: functions of a user's shared libraries that a proxy may call by XLA's FFI."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Final

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["FfiTarget", "read_ffi_targets"]

_FORM: Final = re.compile(
    r"(?P<name>[A-Za-z_][\w.]{0,127})=(?P<library>[\w][\w.+-]{0,127}):(?P<symbol>[A-Za-z_]\w{0,254})",
    re.ASCII,
)
#: Maximum number of functions per proxy.
_MOST: Final = 64


@dataclasses.dataclass(frozen=True)
class FfiTarget:
    """A function: its name in programs, the library's file name, and the handler's symbol there."""

    name: str
    library: str
    symbol: str

    @classmethod
    def parse(cls, text: object, *, field: str) -> FfiTarget:
        """Parses ``NAME=LIBRARY:SYMBOL``; raises InvalidRequestError."""
        form = _FORM.fullmatch(text) if isinstance(text, str) else None
        if form is None:
            raise InvalidRequestError(
                field, text, "a function NAME=LIBRARY:SYMBOL, e.g. scale=libscale.so:Scale"
            )
        return cls(**form.groupdict())

    def __str__(self) -> str:
        return f"{self.name}={self.library}:{self.symbol}"


def read_ffi_targets(texts: Iterable[str], *, field: str) -> tuple[FfiTarget, ...]:
    """Parses several targets, whose names must differ; raises InvalidRequestError."""
    texts = tuple(texts)
    if len(texts) > _MOST:
        raise InvalidRequestError(field, f"{len(texts)} ffi_targets", f"at most {_MOST} of them")
    targets = tuple(FfiTarget.parse(text, field=field) for text in texts)
    names = [target.name for target in targets]
    for target in targets:
        if names.count(target.name) > 1:
            raise InvalidRequestError(field, str(target), f"the name {target.name} once")
    return targets
