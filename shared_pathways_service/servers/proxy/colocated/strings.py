"""Arrays of one string on each device: the description of a function's results."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from shared_pathways_service.servers.devices.status_errors import Code, StatusError

__all__ = ["STRINGS", "Strings"]


class Strings:
    """A `DeviceClient` for arrays that are lists of bytes; they can be read only."""

    def fetch(self, array: Sequence[bytes]) -> list[bytes]:
        """Returns each piece."""
        return list(array)

    def reading(self, array: Sequence[bytes]) -> contextlib.AbstractContextManager[list[bytes]]:
        """Returns the pieces as `fetch` does."""
        return contextlib.nullcontext(self.fetch(array))

    def parts(self, array: Sequence[bytes]) -> list[Sequence[bytes]]:
        """Returns the pieces as arrays on single devices."""
        return [[piece] for piece in array]

    def is_deleted(self, _array: Sequence[bytes]) -> bool:
        """No program takes their memory."""
        return False

    def __getattr__(self, name: str) -> Any:
        raise StatusError(Code.UNIMPLEMENTED, f"arrays of strings can be fetched only, not {name}")


STRINGS = Strings()
