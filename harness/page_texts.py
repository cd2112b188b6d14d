"""Texts of documentation pages that programs write, each between two markers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

__all__ = ["PageText"]


@dataclasses.dataclass(frozen=True)
class PageText:
    """A place in a page.

    Attributes:
      path: The page.
      begin: The line before the text, which says what writes it.
      end: The line after it.
    """

    path: Path
    begin: str
    end: str = "<!-- end -->"

    def is_there(self) -> bool:
        """Whether the page has the place, once."""
        page = self.path.read_text()
        text, end, _ = page.partition(f"{self.begin}\n")[2].partition(self.end)
        return page.count(f"{self.begin}\n") == 1 and bool(end) and "<!--" not in text

    def read(self) -> str:
        """Returns the text, without blanks around it."""
        return self.path.read_text().partition(f"{self.begin}\n")[2].partition(self.end)[0].strip()

    def write(self, text: str) -> None:
        """Replaces the text.

        Raises:
          ValueError: The page has no place for it.
        """
        if not self.is_there():
            raise ValueError(f"{self.path} has no place for a text, once: {self.begin}")
        before, begin, rest = self.path.read_text().partition(f"{self.begin}\n")
        after = rest.partition(self.end)[2]
        self.path.write_text(f"{before}{begin}{text}\n{self.end}{after}")
