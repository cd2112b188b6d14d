"""The `sps` commands that pages show, put to the real parser."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from markdown_it import MarkdownIt

from shared_pathways_service.cli import COMMANDS, command
from tests.docs.blocks import Block

__all__ = ["check", "check_names", "named", "typed"]

_SHELL = ("sh", "console", "indented")
#: What ends a command in a shell.
_ENDS = re.compile(r"[|;&()<>]+")
_VARIABLE = re.compile(r"[A-Za-z_]+=.*")


def typed(block: Block) -> Iterator[list[str]]:
    """Returns the words of each `sps` command of a block, without `sps`."""
    if block.language not in _SHELL:
        return
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if block.language == "console" and not line.startswith("$ "):
            continue
        yield from _in_line(line.removeprefix("$ "))


def _in_line(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not _ENDS.fullmatch(word):
            words.append(word)
            continue
        while words and _VARIABLE.fullmatch(words[0]):
            words.pop(0)
        if words[:1] == ["sps"]:
            yield words[1:]
        words = []


def check(words: Sequence[str], where: str) -> None:
    """Puts a command to its parser, which does not run it.

    Raises:
      Exception: What the parser says of it.
    """
    name = words[0]
    assert name in COMMANDS, f"{where}: sps {name}: there is no such command"
    command = _commands()[name]
    try:
        command.make_context(name, list(words[1:]), parent=typer.Context(command))
    except Exception as error:
        error.add_note(f"{where}: sps {shlex.join(words)}")
        raise


def named(page: Path) -> Iterator[list[str]]:
    """Returns the words of each `sps` command that a page names in its text."""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        for child in token.children or ():
            if child.type == "code_inline" and re.match(r"sps [a-z]", child.content):
                own = child.content.partition(" | ")[0]  # (what is piped into is not ours)
                yield re.sub(r"[\[\]…]", " ", own).split()[1:]


@functools.cache
def _commands() -> Mapping[str, Any]:
    return {name: command(name) for name in COMMANDS}


def check_names(words: Sequence[str], where: str) -> None:
    """Checks that a command and its options are known; what they are given may stand open."""
    assert words[0] in COMMANDS, f"{where}: sps {words[0]}: there is no such command"
    command = _commands()[words[0]]
    known = {name for param in command.params for name in [*param.opts, *param.secondary_opts]}
    known |= {name.replace("_", "-") for name in known} | {"--help"}
    own = words[: words.index("--")] if "--" in words else words
    for word in own:
        option = word.partition("=")[0].replace("_", "-")
        if word.startswith("-"):
            assert option in known or option.rstrip("-") in known, (
                f"{where}: sps {words[0]}: {word}"
            )
