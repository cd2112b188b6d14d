"""Which connections a link has to acknowledge, and whether now, without I/O."""

from __future__ import annotations

__all__ = ["AckQueue"]

#: Bytes that are acknowledged at once. Less than half of what may be under way at the least.
_AT_ONCE_BYTES = 32 << 10


class AckQueue:
    """Acknowledgements of few bytes wait for frames that go the same way anyhow.

    Attributes:
      is_due: Whether they have waited enough.
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self._bytes = 0
        self.is_due = False

    @property
    def is_waiting(self) -> bool:
        """Whether some wait, and may wait on."""
        return bool(self._numbers) and not self.is_due

    def add(self, number: int, size: int) -> None:
        """Adds a connection of which bytes have arrived or were passed on."""
        self._numbers.add(number)
        self._bytes += size
        self.is_due = self.is_due or self._bytes >= _AT_ONCE_BYTES

    def add_at_once(self, number: int) -> None:
        """Adds a connection of which an acknowledgement may be lost."""
        self.add(number, _AT_ONCE_BYTES)

    def discard(self, number: int) -> None:
        """Removes a connection."""
        self._numbers.discard(number)
        self.is_due = self.is_due and bool(self._numbers)

    def hurry(self) -> None:
        """Lets none of them wait any longer."""
        self.is_due = bool(self._numbers)

    def take(self) -> list[int]:
        """Returns the connections, and begins anew."""
        numbers = list(self._numbers)
        self._numbers.clear()
        self._bytes, self.is_due = 0, False
        return numbers
