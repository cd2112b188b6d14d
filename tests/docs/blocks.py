"""Code blocks of the documentation's pages, and which of them no test runs."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

__all__ = [
    "DOCS",
    "ROOT",
    "Block",
    "NotRun",
    "all_blocks",
    "blocks_of",
    "is_run",
    "not_run",
    "pages",
]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_NOT_RUN = Path(__file__).parent / "not_run.toml"
#: What a page's runner knows to do with; `text` behind one of these is what it shows.
_RUN = ("python", "sh", "console", "toml")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """One code block.

    Attributes:
      page: Relative to the repository.
      line: Of the page, from 1.
      language: As the page says; empty where it says none.
      text: With its last newline.
      shows: What running it shows, from the block of `text` right behind it; None: nothing is told.
    """

    page: str
    line: int
    language: str
    text: str
    shows: str | None = None

    @property
    def first_line(self) -> str:
        """What names it within its page."""
        return self.text.strip().partition("\n")[0].strip()


@dataclasses.dataclass(frozen=True, kw_only=True)
class NotRun:
    """A block that no test runs, and why.

    Attributes:
      begins: The beginning of its first line; empty: all blocks of the page.
    """

    page: str
    begins: str
    reason: str

    def names(self, block: Block) -> bool:
        """Whether it is this block."""
        return block.page == self.page and block.first_line.startswith(self.begins)


def pages() -> list[Path]:
    """Returns all pages: the documentation, and what a reader of the repository meets first."""
    return [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def blocks_of(page: Path) -> list[Block]:
    """Returns a page's blocks, each with what it shows."""
    found: list[Block] = []
    end = -1
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        if token.type not in ("fence", "code_block") or token.map is None:
            # Words between a block and a `text` say that this is another one's.
            end = -1 if token.type in ("inline", "heading_open") else end
            continue
        language = token.info.strip() if token.type == "fence" else "indented"
        if language == "text" and end >= 0:
            found[-1] = dataclasses.replace(found[-1], shows=token.content)
            end = -1
            continue
        path = (page.relative_to(ROOT) if page.is_relative_to(ROOT) else page).as_posix()
        line = token.map[0] + 1
        found.append(Block(page=path, line=line, language=language, text=token.content))
        end = token.map[1] if language in ("python", "sh") else -1
    return found


def not_run() -> list[NotRun]:
    """Reads `not_run.toml`."""
    told = tomllib.loads(_NOT_RUN.read_text())
    return [NotRun(**entry) for entry in told["block"]]


def is_run(block: Block, left_out: list[NotRun]) -> bool:
    """Whether a test runs the block."""
    return block.language in _RUN and not any(entry.names(block) for entry in left_out)


def all_blocks() -> Iterator[Block]:
    """Returns the blocks of all pages."""
    for page in pages():
        yield from blocks_of(page)
