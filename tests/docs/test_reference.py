"""The reference pages are what the code says."""

from __future__ import annotations

import configparser
import re

import pytest

from shared_pathways_service.cli import COMMANDS, command
from tests.docs import errors_page, reference
from tests.docs.blocks import DOCS, ROOT, blocks_of
from tests.docs.raised import all_raised

#: Typer's own, for completion in a shell.
_TYPERS_OWN = ("SPS_COMPLETE",)


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    written = (reference.DIRECTORY / name).read_text()
    assert written == reference.page(name), f"{name} is old: run scripts/docs --reference"


def test_obsolete_pages_are_removed() -> None:
    made = {file.name for file in reference.DIRECTORY.iterdir()}
    assert made == set(reference.PAGES)


def test_every_option_of_every_command_is_documented() -> None:
    page = reference.page("commands.md")
    for name in COMMANDS:
        section = page.partition(f"\n## sps {name}\n")[2].partition("\n## ")[0]
        for param in command(name).params:
            if param.param_type_name == "option" and not param.hidden:
                assert param.help, (name, param.name)
                assert all(f"`{option}`" in section for option in param.opts), (name, param.opts)


def test_every_variable_is_documented() -> None:
    told = "".join(reference.page(name) for name in ("settings.md", "servers.md", "commands.md"))
    for file in (ROOT / "shared_pathways_service").rglob("*.py"):
        for variable in re.findall(r"\bSPS_[A-Z_]*[A-Z]\b", file.read_text()):
            assert f"`{variable}`" in told or variable in _TYPERS_OWN, f"{file}: {variable}"


def test_errors_are_found_where_they_are_made() -> None:
    made = {raised.error for raised in all_raised(frozenset(errors_page.classes()))}
    assert made == errors_page.classes().keys()


def test_the_layers_are_those_that_are_checked() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / ".importlinter")
    layers = settings["importlinter:contract:layers"]["layers"].strip()
    drawn = [block.text.strip() for block in blocks_of(DOCS / "architecture.md")]
    assert layers in drawn
